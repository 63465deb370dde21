// A hostile pattern that guides sampling, and a text after the first zero byte. Building ends within its limits, and every
// state that a text can reach can still reach a match.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "text/guide/byte_automaton.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view bytes = as_text(data, size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  const auto automaton = ByteAutomaton::compile(bytes.substr(0, cut));
  if (!automaton.ok()) {
    require(!automaton.error().what.empty(), "an error says what");
    return;
  }
  int32_t state = ByteAutomaton::kStart;
  for (const char byte : bytes.substr(std::min(cut + 1, bytes.size()))) {
    state = automaton->next(state, static_cast<uint8_t>(byte));
    if (state == ByteAutomaton::kDead) return;
    require(state < automaton->num_states(), "a state is one of the automaton's");
    bool goes_on = automaton->accepts(state);
    for (int next = 0; next < 256 && !goes_on; ++next)
      goes_on = automaton->next(state, static_cast<uint8_t>(next)) != ByteAutomaton::kDead;
    require(goes_on, "no state is a dead end");
  }
}

}  // namespace mortise
