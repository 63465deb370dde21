// See regex.h.
#include "text/tokenizer/regex.h"

#include <fmt/core.h>

#include "foundation/base/text.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

// The library's own category tables are used only where they are known.
bool tables_are_unicode14() { return parse::pattern_unicode_version() == "14.0.0"; }

std::string escape_literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#&~ \t\n\r").find(c) != std::string_view::npos) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += buffer;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

Result<Regex> Regex::compile(std::string_view pattern, std::string_view where) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorKind::kData, fmt::format("the regular expression {} cannot be used: {}", quote(pattern), why),
                 std::string(where), ""};
  };
  if (const auto bad = find_invalid_utf8(pattern)) return refuse("it is not UTF-8 at byte " + std::to_string(*bad));
  if (pattern.size() > parse::kMaxPatternBytes) {
    return refuse(fmt::format("it has {} bytes, at most {} are allowed", pattern.size(), parse::kMaxPatternBytes));
  }
  const std::string translated = TRY(translate_regex(pattern, where, !tables_are_unicode14()));
  parse::PatternOptions options;
  options.multi_line = true;
  options.unicode_classes = true;
  options.max_pattern_bytes = kMaxTranslatedBytes;
  auto compiled = parse::Pattern::compile(translated, options);
  if (!compiled) return refuse(compiled.fault().what);
  return Regex(std::make_shared<const parse::Pattern>(*std::move(compiled)), std::string(pattern));
}

Result<Regex> Regex::literal(std::string_view text, std::string_view where) {
  return compile(escape_literal(text), where);
}

Result<> Regex::find_all(std::string_view text, std::vector<TextSpan>& out) const {
  parse::PatternSearch search(*pattern_, text, parse::PatternSearch::Utf8::kKnownGood);
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (search.find(from)) {
    const parse::PatternSpan span = search.group(0);
    if (span.begin >= span.end && span.end == last_end) {
      from += from < text.size() ? unicode::utf8_length(text[from]) : 1;
      continue;
    }
    out.push_back({span.begin, span.end});
    from = last_end = span.end;
  }
  if (!search.fault()) return {};
  return Error{ErrorKind::kData,
               fmt::format("matching the regular expression {} failed: {}", quote(source_), search.fault()->what), "",
               ""};
}

}  // namespace mortise
