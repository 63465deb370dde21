// The caps of this room. The engine's other caps are in foundation/base/limits.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mortise::parse {

inline constexpr int kMaxJsonDepth = 128;                  // nested arrays and objects
inline constexpr std::size_t kMaxJsonBytes = 536'870'912;  // size of one text
inline constexpr std::size_t kMaxJsonValues = 16'000'000;  // a tokenizer.json has up to 2 million
inline constexpr std::size_t kMaxShownFaultBytes = 200;    // bytes of the library's message about a text

inline constexpr std::size_t kMaxPatternBytes = 65'536;      // size of a regular expression
inline constexpr std::uint32_t kMaxMatchSteps = 10'000'000;  // PCRE2's own default
inline constexpr double kMaxSearchSeconds = 1.0;

}  // namespace mortise::parse
