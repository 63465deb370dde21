// Sets of Unicode characters as ranges of code points, and their UTF-8 as ranges of bytes. Surrogates are in no set.
// Thread rule: plain values, pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/unicode/properties.h"

namespace mortise {

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

using unicode::CodeRange;

class CodeRanges {
 public:
  CodeRanges() = default;
  explicit CodeRanges(std::vector<CodeRange> ranges);

  void add(const CodeRanges& other);
  // All other characters.
  [[nodiscard]] CodeRanges others() const;
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  // In order, apart from one another.
  [[nodiscard]] const std::vector<CodeRange>& ranges() const { return ranges_; }

 private:
  void settle();
  std::vector<CodeRange> ranges_;
};

struct ByteRange {
  uint8_t first = 0, last = 0;
  bool operator==(const ByteRange&) const = default;
};

// Characters whose UTF-8 is one byte of each range, in this order.
struct ByteSequence {
  std::array<ByteRange, 4> ranges{};
  size_t size = 0;
};

// The UTF-8 of the set: each of its characters is in one of these sequences, and nothing else is.
std::vector<ByteSequence> byte_sequences(const CodeRanges& set);

}  // namespace mortise
