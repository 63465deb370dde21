// A hostile regular expression, and a text after the first zero byte. Compiling and matching end within their limits,
// and matches are inside the text, in order.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "parse/pattern.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view bytes = as_text(data, size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  const std::string_view text = bytes.substr(std::min(cut + 1, bytes.size()));
  parse::PatternOptions options;
  options.multi_line = size % 2 == 1;
  options.unicode_classes = size % 3 == 1;
  options.max_seconds = 0.1;  // so that the fuzzer gets on: a fault, as with the limit of a run
  const auto pattern = parse::Pattern::compile(bytes.substr(0, cut), options);
  if (!pattern.ok()) {
    require(!pattern.fault().what.empty(), "a fault says what");
    return;
  }
  parse::PatternSearch search(*pattern, text);
  size_t end = 0;
  for (size_t num_found = 0; search.next(); ++num_found) {
    require(num_found <= text.size() + 1, "the search ends");
    const parse::PatternSpan span = search.group();
    require(span.begin == parse::PatternSpan::kUnset || (span.end <= text.size() && span.end >= end),
            "matches lie in the text, in order");
    if (span.is_set()) end = span.end;
  }
  if (search.fault()) require(!search.fault()->what.empty(), "a fault says what");
}

}  // namespace mortise
