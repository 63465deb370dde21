// A pattern as a deterministic automaton over the bytes of UTF-8 text.
//
// Every state can still reach a match, so a text is the beginning of a matching text just as long as the automaton is in
// some state. Bytes that no state tells apart share a class.
// Cost: building takes at most kMostAutomatonWork steps (about 0.2 s) and kMostAutomatonCells numbers; a larger pattern is
// an error. A step is one look-up. Thread rule: constant after building.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

inline constexpr int64_t kMostAutomatonWork = 5'000'000;
inline constexpr int64_t kMostAutomatonCells = int64_t{1} << 22;  // 16 MiB

class ByteAutomaton {
 public:
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kStart = 0;

  static Result<ByteAutomaton> compile(std::string_view pattern);

  // The state behind one more byte; kDead if no matching text continues with it. `state` is not kDead.
  [[nodiscard]] int32_t next(int32_t state, uint8_t byte) const {
    return table_[static_cast<size_t>(state) * static_cast<size_t>(num_classes_) + class_of_[byte]];
  }
  // Whether the text so far matches.
  [[nodiscard]] bool accepts(int32_t state) const { return accepts_[static_cast<size_t>(state)] != 0; }
  [[nodiscard]] int32_t num_states() const { return static_cast<int32_t>(accepts_.size()); }
  // Whether any state continues with this byte.
  [[nodiscard]] bool uses(uint8_t byte) const;
  [[nodiscard]] bool matches(std::string_view text) const;

 private:
  ByteAutomaton() = default;

  std::array<uint8_t, 256> class_of_{};
  int32_t num_classes_ = 0;
  std::vector<int32_t> table_;  // [states, classes]
  std::vector<uint8_t> accepts_;
};

}  // namespace mortise
