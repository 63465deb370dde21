// See pattern_states.h. A node is built from its end: enter() gives the state from which the node leads to `target`.
#include "text/guide/pattern_states.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

namespace mortise {
namespace {

class StateBuilder {
 public:
  explicit StateBuilder(const PatternTree& tree) : tree_(tree) {}

  Result<PatternStates> build() {
    out_.match = add({});
    out_.start = enter(tree_.root, out_.match);
    if (!is_full()) return std::move(out_);
    return Error{ErrorKind::kConfig, fmt::format("the pattern needs more than {} states", kMostPatternStates), "",
                 "lower the numbers of its repeats"};
  }

 private:
  // Repeats of the empty text add no states, so passes count too.
  [[nodiscard]] bool is_full() const {
    return std::max(std::ssize(out_.states) + std::ssize(out_.edges), num_entered_) > 4 * kMostPatternStates ||
           std::ssize(out_.states) > kMostPatternStates;
  }

  uint32_t add(PatternState state) {
    out_.states.push_back(state);
    return static_cast<uint32_t>(out_.states.size() - 1);
  }
  uint32_t split(uint32_t one, uint32_t other) {
    PatternState state;
    state.split[0] = one;
    state.split[1] = other;
    return add(state);
  }

  uint32_t enter(size_t node, uint32_t target) {
    ++num_entered_;
    if (is_full()) return target;
    const PatternNode& own = tree_.nodes[node];
    switch (own.kind) {
      case PatternNode::Kind::kClass:
        return enter_class(own.set, target);
      case PatternNode::Kind::kSequence:
        for (size_t i = own.children.size(); i-- > 0;) target = enter(own.children[i], target);
        return target;
      case PatternNode::Kind::kChoice:
        break;
      case PatternNode::Kind::kRepeat:
        return enter_repeat(own, target);
    }
    uint32_t first = enter(own.children.back(), target);
    for (size_t i = own.children.size() - 1; i-- > 0;) first = split(enter(own.children[i], target), first);
    return first;
  }

  uint32_t enter_repeat(const PatternNode& own, uint32_t target) {
    const size_t child = own.children[0];
    if (own.most == PatternNode::kNoEnd) {
      const uint32_t again = split(PatternState::kNone, target);
      const uint32_t body = enter(child, again);
      out_.states[again].split[0] = body;
      if (own.least == 0) return again;
      target = body;  // which is once or more
    }
    const int optional = own.most == PatternNode::kNoEnd ? 0 : own.most - own.least;
    const uint32_t end = target;
    for (int i = 0; i < optional && !is_full(); ++i) target = split(enter(child, target), end);
    const int needed = own.most == PatternNode::kNoEnd ? own.least - 1 : own.least;
    for (int i = 0; i < needed && !is_full(); ++i) target = enter(child, target);
    return target;
  }

  uint32_t enter_class(const CodeRanges& set, uint32_t target) {
    std::vector<PatternEdge> first;
    for (const ByteSequence& sequence : byte_sequences(set)) {
      uint32_t to = target;
      for (size_t i = sequence.size; i-- > 1;) to = with_edges({{sequence.ranges[i], to}});
      first.push_back({sequence.ranges[0], to});
    }
    return with_edges(first);
  }

  uint32_t with_edges(const std::vector<PatternEdge>& edges) {
    PatternState state;
    state.first_edge = static_cast<uint32_t>(out_.edges.size());
    state.num_edges = static_cast<uint32_t>(edges.size());
    out_.edges.insert(out_.edges.end(), edges.begin(), edges.end());
    return add(state);
  }

  const PatternTree& tree_;
  PatternStates out_;
  std::ptrdiff_t num_entered_ = 0;
};

}  // namespace

Result<PatternStates> pattern_states(const PatternTree& tree) { return StateBuilder(tree).build(); }

}  // namespace mortise
