// See byte_automaton.h. Subsets of the pattern's states become states, the start first, in the order in which they are
// found.
#include "text/guide/byte_automaton.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "text/guide/pattern_states.h"

namespace mortise {
namespace {

constexpr int64_t kWorkOfState = 20;  // its memory

struct ByteClasses {
  std::array<uint8_t, 256> class_of{};
  int32_t count = 0;
};

ByteClasses byte_classes(const std::vector<PatternEdge>& edges) {
  std::array<bool, 257> begins{};  // a class begins with this byte
  begins[0] = true;
  for (const PatternEdge& edge : edges) begins[edge.bytes.first] = begins[size_t{edge.bytes.last} + 1] = true;
  ByteClasses out;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) ++out.count;
    out.class_of[byte] = static_cast<uint8_t>(out.count - 1);
  }
  return out;
}

class SubsetBuilder {
 public:
  explicit SubsetBuilder(const PatternStates& pattern)
      : pattern_(pattern),
        classes_(byte_classes(pattern.edges)),
        seen_(pattern.states.size(), 0),
        targets_(static_cast<size_t>(classes_.count)) {}

  Result<> build() {
    const std::vector<uint32_t> start = {pattern_.start};
    place(start);
    for (size_t state = 0; state < subsets_.size(); ++state) {
      expand(*subsets_[state]);
      const bool is_large = std::ssize(table) > kMostAutomatonCells;
      if (is_large || work_ > kMostAutomatonWork) {
        return Error{ErrorKind::kConfig,
                     fmt::format("the pattern needs too many states: {} {}", subsets_.size(),
                                 is_large ? "do not fit" : "take too long to find"),
                     "", "lower the numbers of its repeats, or let fewer of its parts match the same text"};
      }
    }
    return {};
  }

  [[nodiscard]] const ByteClasses& classes() const { return classes_; }
  std::vector<int32_t> table;
  std::vector<uint8_t> accepts;

 private:
  using Subset = std::vector<uint32_t>;

  // The states that the pattern is in, with those that follow at once. Those that only split are left out.
  Subset closed(const Subset& from) {
    ++mark_;
    Subset out;
    stack_.assign(from.begin(), from.end());
    while (!stack_.empty()) {
      const uint32_t id = stack_.back();
      stack_.pop_back();
      if (seen_[id] == mark_) continue;
      seen_[id] = mark_;
      ++work_;
      const PatternState& state = pattern_.states[id];
      for (const uint32_t next : state.split)
        if (next != PatternState::kNone) stack_.push_back(next);
      if (state.num_edges > 0 || id == pattern_.match) out.push_back(id);
    }
    std::ranges::sort(out);
    return out;
  }

  int32_t place(const Subset& from) {
    const auto [at, is_new] = ids_.try_emplace(closed(from), static_cast<int32_t>(subsets_.size()));
    work_ += std::ssize(at->first);
    if (!is_new) return at->second;
    work_ += kWorkOfState;
    subsets_.push_back(&at->first);
    accepts.push_back(std::ranges::binary_search(at->first, pattern_.match) ? 1 : 0);
    return at->second;
  }

  // The row of the table of one state.
  void expand(const Subset& subset) {
    for (Subset& targets : targets_) targets.clear();
    for (const uint32_t id : subset) {
      const PatternState& state = pattern_.states[id];
      for (uint32_t e = state.first_edge; e < state.first_edge + state.num_edges; ++e) {
        const PatternEdge& edge = pattern_.edges[e];
        const size_t last = classes_.class_of[edge.bytes.last];
        for (size_t c = classes_.class_of[edge.bytes.first]; c <= last; ++c) targets_[c].push_back(edge.to);
        work_ += static_cast<int64_t>(last) - classes_.class_of[edge.bytes.first] + 1;
      }
    }
    const size_t row = table.size();
    table.resize(row + targets_.size(), ByteAutomaton::kDead);
    for (size_t c = 0; c < targets_.size(); ++c) {
      if (targets_[c].empty()) continue;
      const bool is_as_before = c > 0 && targets_[c] == targets_[c - 1];
      table[row + c] = is_as_before ? table[row + c - 1] : place(targets_[c]);
    }
  }

  const PatternStates& pattern_;
  ByteClasses classes_;
  std::map<Subset, int32_t> ids_;
  std::vector<const Subset*> subsets_;  // by id
  std::vector<uint32_t> seen_;          // by pattern state: the closure that saw it last
  std::vector<uint32_t> stack_;
  std::vector<Subset> targets_;  // by class
  uint32_t mark_ = 0;
  int64_t work_ = 0;
};

}  // namespace

Result<ByteAutomaton> ByteAutomaton::compile(std::string_view pattern) {
  const PatternTree tree = TRY(parse_pattern(pattern));
  const PatternStates states = TRY(pattern_states(tree));
  SubsetBuilder builder(states);
  TRY(builder.build());
  ByteAutomaton out;
  out.class_of_ = builder.classes().class_of;
  out.num_classes_ = builder.classes().count;
  out.table_ = std::move(builder.table);
  out.accepts_ = std::move(builder.accepts);
  return out;
}

bool ByteAutomaton::uses(uint8_t byte) const {
  for (int32_t state = 0; state < num_states(); ++state)
    if (next(state, byte) != kDead) return true;
  return false;
}

bool ByteAutomaton::matches(std::string_view text) const {
  int32_t state = kStart;
  for (const char c : text) {
    state = next(state, static_cast<uint8_t>(c));
    if (state == kDead) return false;
  }
  return accepts(state);
}

}  // namespace mortise
