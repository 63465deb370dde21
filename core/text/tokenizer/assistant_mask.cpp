// See assistant_mask.h.
#include "text/tokenizer/assistant_mask.h"

#include <algorithm>

#include "text/unicode/utf8.h"

namespace mortise {
namespace {

// Does a token that showed `piece` also hold the first bytes of the character behind it?
bool begins_next(const Tokenizer& tokenizer, int64_t id, std::string_view piece) {
  return tokenizer.decode({&id, 1}).ends_with(unicode::kReplacement) && !piece.ends_with(unicode::kReplacement);
}

// The characters of each token, in code points, those included of which it has some bytes only.
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
  if (joined != text) {
    const auto differ = std::mismatch(text.begin(), text.end(), joined.begin(), joined.end()).first;
    return Error{ErrorKind::kData,
                 "the tokens do not give the conversation's text back (from byte " +
                     std::to_string(differ - text.begin()) + " on), so the assistant's cannot be told from the others",
                 tokenizer.folder().string(), "write the text as the tokenizer normalises it (NFC, say)"};
  }
  std::vector<uint8_t> mask(ids.size(), 0);
  size_t span = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    while (span < spans.size() && spans[span].end <= ranges[i].begin) ++span;
    for (size_t s = span; s < spans.size() && spans[s].begin < ranges[i].end && mask[i] == 0; ++s)
      mask[i] = spans[s].begin < spans[s].end ? 1 : 0;
  }
  return mask;
}

}  // namespace mortise
