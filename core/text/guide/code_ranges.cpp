// See code_ranges.h.
#include "text/guide/code_ranges.h"

#include <algorithm>

namespace mortise {
namespace {

constexpr CodeRange kSurrogates{0xD800, 0xDFFF};
constexpr std::array<uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

std::array<uint8_t, 4> utf8_of(uint32_t code, size_t size) {
  constexpr std::array<uint8_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  std::array<uint8_t, 4> out{};
  for (size_t i = size; i-- > 1;) {
    out[i] = static_cast<uint8_t>(0x80 | (code & 0x3F));
    code >>= 6;
  }
  out[0] = static_cast<uint8_t>(kLead[size - 1] | code);
  return out;
}

// A range whose characters have UTF-8 of one length. It is cut until all bytes behind the first one that differs between
// its ends go from 0x80 to 0xBF.
void append_sequences(CodeRange range, size_t size, std::vector<ByteSequence>& out) {
  for (size_t tail = 1; tail < size; ++tail) {
    const uint32_t mask = (uint32_t{1} << (6 * tail)) - 1;
    if ((range.first & ~mask) == (range.last & ~mask)) continue;
    if ((range.first & mask) != 0) {
      append_sequences({range.first, range.first | mask}, size, out);
      return append_sequences({(range.first | mask) + 1, range.last}, size, out);
    }
    if ((range.last & mask) != mask) {
      append_sequences({range.first, (range.last & ~mask) - 1}, size, out);
      return append_sequences({range.last & ~mask, range.last}, size, out);
    }
  }
  const auto first = utf8_of(range.first, size), last = utf8_of(range.last, size);
  ByteSequence& sequence = out.emplace_back();
  sequence.size = size;
  for (size_t i = 0; i < size; ++i) sequence.ranges[i] = {first[i], last[i]};
}

}  // namespace

CodeRanges::CodeRanges(std::vector<CodeRange> ranges) : ranges_(std::move(ranges)) { settle(); }

void CodeRanges::add(const CodeRanges& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  settle();
}

// In order, joined where they touch, without surrogates.
void CodeRanges::settle() {
  std::ranges::sort(ranges_, {}, &CodeRange::first);
  std::vector<CodeRange> joined;
  for (const CodeRange& range : ranges_) {
    if (!joined.empty() && range.first <= joined.back().last + 1)
      joined.back().last = std::max(joined.back().last, range.last);
    else
      joined.push_back(range);
  }
  ranges_.clear();
  for (const CodeRange& range : joined) {
    if (range.last < kSurrogates.first || range.first > kSurrogates.last) {
      ranges_.push_back(range);
      continue;
    }
    if (range.first < kSurrogates.first) ranges_.push_back({range.first, kSurrogates.first - 1});
    if (range.last > kSurrogates.last) ranges_.push_back({kSurrogates.last + 1, range.last});
  }
}

CodeRanges CodeRanges::others() const { return CodeRanges(unicode::complement(ranges_)); }

std::vector<ByteSequence> byte_sequences(const CodeRanges& set) {
  std::vector<ByteSequence> out;
  for (const CodeRange& range : set.ranges()) {
    uint32_t first = range.first;
    for (size_t size = 1; size <= kLastOfLength.size() && first <= range.last; ++size) {
      const uint32_t last = std::min(range.last, kLastOfLength[size - 1]);
      if (first > last) continue;
      append_sequences({first, last}, size, out);
      first = last + 1;
    }
  }
  return out;
}

}  // namespace mortise
