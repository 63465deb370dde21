// See pattern_check.h.
#include "text/guide/pattern_check.h"

#include <algorithm>

namespace mortise {

Result<PatternCheck> PatternCheck::create(std::string_view pattern) {
  return PatternCheck(TRY(ByteAutomaton::compile(pattern)));
}

bool PatternCheck::follows(std::string_view text, Extent extent) const {
  int32_t state = ByteAutomaton::kStart;
  for (const char byte : text) {
    state = automaton_.next(state, static_cast<uint8_t>(byte));
    if (state == ByteAutomaton::kDead) return false;
  }
  return extent == Extent::kBeginning || automaton_.accepts(state);
}

Result<bool> PatternCheck::follows(std::span<const int64_t> ids, std::span<const int64_t> end_ids, Extent extent,
                                   const Tokenizer& tokenizer) const {
  if (!ids.empty() && std::ranges::find(end_ids, ids.back()) != end_ids.end()) {
    ids = ids.first(ids.size() - 1);
    extent = Extent::kWhole;
  }
  std::string text;
  for (const int64_t id : ids) {
    if (!tokenizer.is_special(id)) text += TRY(tokenizer.token_bytes(id));
  }
  if (follows(text, extent)) return true;
  const bool drops_space =
      text.starts_with(' ') && !tokenizer.decode(ids, /*skip_special_tokens=*/true).starts_with(' ');
  return drops_space && follows(std::string_view(text).substr(1), extent);
}

}  // namespace mortise
