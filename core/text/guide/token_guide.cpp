// See token_guide.h.
#include "text/guide/token_guide.h"

#include <fmt/core.h>

#include <algorithm>

namespace mortise {
namespace {

constexpr int64_t kMostBlindWork = 50'000'000;  // nodes that a search for dead ways looks at

}  // namespace

void TokenSet::add(int64_t id) {
  if (has(id)) return;
  words[static_cast<size_t>(id / kWordBits)] |= uint64_t{1} << (id % kWordBits);
  ++count;
}

void TokenSet::remove(int64_t id) {
  if (!has(id)) return;
  words[static_cast<size_t>(id / kWordBits)] &= ~(uint64_t{1} << (id % kWordBits));
  --count;
}

template <class Found>
int64_t TokenGuide::walk(int32_t state, const Found& found) const {
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  std::array<int32_t, VocabularyTrie::kMostTokenBytes + 1> states{};  // by depth
  states[0] = state;
  int64_t num_seen = 0;
  for (size_t i = 0; i < nodes.size(); ++num_seen) {
    const VocabularyTrie::Node& node = nodes[i];
    const int32_t next = automaton_.next(states[node.depth - 1U], node.byte);
    if (next == ByteAutomaton::kDead) {
      i = node.end;
      continue;
    }
    states[node.depth] = next;
    for (const int32_t id : vocabulary_->ids_at(node)) found(id, next);
    ++i;
  }
  return num_seen;
}

Result<std::shared_ptr<TokenGuide>> TokenGuide::create(std::shared_ptr<const VocabularyTrie> vocabulary,
                                                       std::string_view pattern, std::span<const int64_t> end_ids) {
  if (end_ids.empty()) {
    return Error{ErrorKind::kConfig, "a pattern needs an end token, but the model names none", "",
                 "name one with rollout.stop_token_ids"};
  }
  ByteAutomaton automaton = TRY(ByteAutomaton::compile(pattern));
  std::shared_ptr<TokenGuide> out(
      new TokenGuide(std::move(vocabulary), std::move(automaton), {end_ids.begin(), end_ids.end()}));
  if (!out->has_token_of_each_byte()) TRY(out->find_dead_ways());
  return out;
}

bool TokenGuide::is_end(int64_t id) const { return std::ranges::find(end_ids_, id) != end_ids_.end(); }

// Then each state that continues does so with some token.
bool TokenGuide::has_token_of_each_byte() const {
  std::array<bool, 256> is_there{};
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  for (size_t i = 0; i < nodes.size(); i = nodes[i].end) {
    const auto ids = vocabulary_->ids_at(nodes[i]);
    is_there[nodes[i].byte] = std::ranges::any_of(ids, [&](int32_t id) { return !is_end(id); });
  }
  for (size_t byte = 0; byte < is_there.size(); ++byte)
    if (!is_there[byte] && automaton_.uses(static_cast<uint8_t>(byte))) return false;
  return true;
}

// Backwards from the states in which the text matches, over whole tokens.
Result<> TokenGuide::find_dead_ways() {
  const auto count = static_cast<size_t>(automaton_.num_states());
  std::vector<std::vector<int32_t>> before(count);  // states with a token that leads here
  std::vector<uint8_t> is_met(count, 0);
  std::vector<int32_t> open = {ByteAutomaton::kStart};
  is_met[ByteAutomaton::kStart] = 1;
  int64_t work = 0;
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    work += walk(state, [&](int32_t id, int32_t next) {
      if (is_end(id)) return;
      std::vector<int32_t>& own = before[static_cast<size_t>(next)];
      if (own.empty() || own.back() != state) own.push_back(state);
      if (is_met[static_cast<size_t>(next)] != 0) return;
      is_met[static_cast<size_t>(next)] = 1;
      open.push_back(next);
    });
    if (work > kMostBlindWork) {
      return Error{ErrorKind::kConfig, "the pattern is too large for a vocabulary that lacks tokens of single bytes",
                   "", "lower the numbers of its repeats"};
    }
  }
  is_blind_.assign(count, 1);
  for (int32_t state = 0; state < automaton_.num_states(); ++state) {
    if (is_met[static_cast<size_t>(state)] == 0 || !automaton_.accepts(state)) continue;
    is_blind_[static_cast<size_t>(state)] = 0;
    open.push_back(state);
  }
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    for (const int32_t earlier : before[static_cast<size_t>(state)]) {
      if (is_blind_[static_cast<size_t>(earlier)] == 0) continue;
      is_blind_[static_cast<size_t>(earlier)] = 0;
      open.push_back(earlier);
    }
  }
  if (is_blind_[ByteAutomaton::kStart] == 0) return {};
  return Error{ErrorKind::kConfig, "no text of this tokenizer's tokens matches the pattern", "",
               "use characters that the tokenizer has tokens for"};
}

std::shared_ptr<const TokenSet> TokenGuide::allowed(int32_t state) {
  std::shared_ptr<const TokenSet>& known = sets_[state];
  if (known != nullptr) return known;
  auto set = std::make_shared<TokenSet>(vocabulary_->vocab_size());
  if (state != ByteAutomaton::kDead) {
    walk(state, [&](int32_t id, int32_t next) {
      if (is_blind_.empty() || is_blind_[static_cast<size_t>(next)] == 0) set->add(id);
    });
  }
  const bool may_end = state == ByteAutomaton::kDead || automaton_.accepts(state);
  for (const int64_t id : end_ids_) {
    if (may_end)
      set->add(id);
    else
      set->remove(id);
  }
  if ((sets_.size() + 1) * set->words.size() * sizeof(uint64_t) > kMostSetBytes) {
    sets_.clear();
    sets_[state] = set;
    return set;
  }
  known = set;
  return set;
}

int32_t TokenGuide::next(int32_t state, int64_t id) const {
  if (is_end(id)) return state;
  for (const char byte : vocabulary_->bytes_of(id)) {
    if (state == ByteAutomaton::kDead) return state;
    state = automaton_.next(state, static_cast<uint8_t>(byte));
  }
  return state;
}

}  // namespace mortise
