// See text_alignment.h.
#include "text/tokenizer/text_alignment.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr size_t kMaxGap = 300;  // items of both texts together
constexpr size_t kSmallGap = 2;  // a gap up to this one needs little to agree behind it
constexpr size_t kAgreeSmall = 3;
constexpr size_t kAgreeLarge = 8;
constexpr char32_t kMetaspace = 0x2581;

}  // namespace

TextAlignment::Items TextAlignment::fold(std::string_view text) {
  constexpr auto kOptions =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT | UTF8PROC_CASEFOLD | UTF8PROC_STRIPMARK);
  Items items;
  items.reserve(text.size());
  size_t source = 0;
  for (size_t pos = 0; pos < text.size(); ++source) {
    const char32_t code = unicode::next_code_point(text, pos);
    if (code < 0x80) {
      items.push_back({code >= 'A' && code <= 'Z' ? code + 32 : code, source});
      continue;
    }
    if (code == kMetaspace) {
      items.push_back({U' ', source});
      continue;
    }
    utf8proc_int32_t folded[32];
    int last_class = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 32, kOptions, &last_class);
    for (utf8proc_ssize_t k = 0; k < std::min<utf8proc_ssize_t>(count, 32); ++k)
      items.push_back({static_cast<char32_t>(folded[k]), source});
  }
  return items;
}

TextAlignment::TextAlignment(std::string_view text, std::string_view other) : text_(fold(text)), other_(fold(other)) {
  align();
}

bool TextAlignment::agree(size_t i, size_t j, size_t count) const {
  for (size_t k = 0; k < count; ++k) {
    const bool ended = i + k == text_.size();
    if (ended || j + k == other_.size()) return ended && j + k == other_.size();
    if (text_[i + k].code != other_[j + k].code) return false;
  }
  return true;
}

std::optional<std::pair<size_t, size_t>> TextAlignment::find_gap(size_t i, size_t j) const {
  for (size_t size = 1; size <= kMaxGap; ++size) {
    for (size_t left_out = 0; left_out <= size; ++left_out) {
      const size_t put_in = size - left_out;
      if (i + left_out > text_.size() || j + put_in > other_.size()) continue;
      if (agree(i + left_out, j + put_in, size <= kSmallGap ? kAgreeSmall : kAgreeLarge))
        return std::pair(left_out, put_in);
    }
  }
  return std::nullopt;
}

// `count` items of the other text, from j on, have no counterpart. They belong to the item after them. In a run of
// equal items the first have none: a space in front comes before the text's own.
void TextAlignment::insert(size_t i, size_t j, size_t count) {
  while (i > 0 && places_[i - 1].begin == j - 1 && places_[i - 1].end == j &&
         other_[j - 1].code == other_[j - 1 + count].code) {
    --i;
    --j;
    places_[i] = {j + count, j + count + 1};
  }
  if (i < places_.size()) places_[i].begin = j;
}

void TextAlignment::align() {
  constexpr TextRange kUnplaced{static_cast<size_t>(-1), static_cast<size_t>(-1)};
  places_.assign(text_.size(), kUnplaced);
  size_t i = 0;
  size_t j = 0;
  const auto place = [&](size_t at, TextRange range) {
    if (places_[at].begin != kUnplaced.begin) range.begin = places_[at].begin;  // with what was put in before it
    places_[at] = range;
  };
  while (i < text_.size() || j < other_.size()) {
    if (i < text_.size() && j < other_.size() && text_[i].code == other_[j].code) {
      place(i, {j, j + 1});
      ++i;
      ++j;
      continue;
    }
    const auto gap = find_gap(i, j);
    if (!gap) {
      lost_at_ = i < text_.size() ? text_[i].source : text_.empty() ? 0 : text_.back().source + 1;
      return;
    }
    const auto [left_out, put_in] = *gap;
    if (left_out == 0) {
      insert(i, j, put_in);
    } else {
      for (size_t k = i; k < i + left_out; ++k) place(k, {j, j + put_in});
    }
    i += left_out;
    j += put_in;
  }
}

TextRange TextAlignment::in_other(TextRange range) const {
  const auto first_from = [this](size_t source) {
    const auto it = std::lower_bound(text_.begin(), text_.end(), source,
                                     [](const Item& item, size_t value) { return item.source < value; });
    return static_cast<size_t>(it - text_.begin());
  };
  const size_t first = first_from(range.begin);
  const size_t last = first_from(range.end);
  if (first >= last) return {0, 0};
  const size_t begin = places_[first].begin;
  const size_t end = places_[last - 1].end;
  if (begin >= end) return {0, 0};
  return {other_[begin].source, other_[end - 1].source + 1};
}

}  // namespace mortise
