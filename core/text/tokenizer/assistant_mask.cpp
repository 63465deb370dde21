// See assistant_mask.h.
#include "text/tokenizer/assistant_mask.h"

#include <fmt/core.h>

#include "text/tokenizer/text_alignment.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

// Does a token that showed `piece` also hold the first bytes of the character behind it?
bool begins_next(const Tokenizer& tokenizer, int64_t id, std::string_view piece) {
  return tokenizer.decode({&id, 1}).ends_with(unicode::kReplacement) && !piece.ends_with(unicode::kReplacement);
}

// The characters of each token, in code points, with those of which it has only some bytes.
std::vector<TextRange> token_ranges(const Tokenizer& tokenizer, std::span<const int64_t> ids, std::string& joined) {
  std::vector<TextRange> ranges(ids.size());
  IncrementalDecoder decoder = tokenizer.incremental_decoder();
  size_t position = 0;
  size_t first_open = 0;  // tokens from here on have completed nothing yet
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string piece = decoder.push(ids[i]);
    joined += piece;
    const size_t size = unicode::count_code_points(piece);
    if (size == 0) continue;
    ranges[i] = {position, position + size + (begins_next(tokenizer, ids[i], piece) ? 1 : 0)};
    for (; first_open < i; ++first_open) ranges[first_open] = {position, position + 1};
    first_open = i + 1;
    position += size;
  }
  const std::string rest = decoder.finish();
  joined += rest;
  const size_t end = position + unicode::count_code_points(rest);
  for (; first_open < ids.size(); ++first_open) ranges[first_open] = {position, end};
  return ranges;
}

}  // namespace

Result<std::vector<uint8_t>> assistant_mask(const Tokenizer& tokenizer, std::string_view text,
                                            std::span<const int64_t> ids, std::span<const TextRange> spans) {
  std::string joined;
  const std::vector<TextRange> ranges = token_ranges(tokenizer, ids, joined);
  std::vector<TextRange> wanted;  // in `joined`
  if (joined == text) {
    wanted.assign(spans.begin(), spans.end());
  } else {
    const TextAlignment alignment(text, joined);
    if (const auto lost = alignment.lost_at()) {
      return Error{
          ErrorKind::kData,
          fmt::format(
              "the tokens do not give the conversation's text back (from byte {} on), so the assistant's cannot be "
              "told from the others",
              unicode::byte_offset_of(text, *lost)),
          tokenizer.folder().string(), "write the text as the tokenizer normalises it"};
    }
    for (const TextRange& span : spans) wanted.push_back(alignment.in_other(span));
  }
  std::erase_if(wanted, [](const TextRange& span) { return span.begin >= span.end; });
  std::vector<uint8_t> mask(ids.size(), 0);
  size_t span = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    while (span < wanted.size() && wanted[span].end <= ranges[i].begin) ++span;
    if (span < wanted.size() && wanted[span].begin < ranges[i].end) mask[i] = 1;
  }
  return mask;
}

}  // namespace mortise
