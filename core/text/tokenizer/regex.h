// Regular expressions of tokenizer files: written for Oniguruma (Ruby syntax), run by parse/pattern.h.
//
// The pattern is rewritten first (regex_translate.cpp): \s, \w, \p{L} and the like follow Unicode 16 on every machine,
// \h, {,n}, {n,m}+, nested classes and && get their PCRE2 form. Matching costs about 30 ns per piece.
// Thread rule: a compiled Regex is constant; find_all may run on any number of threads at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "parse/pattern.h"

namespace mortise {

struct TextSpan {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  // `where` names the file in errors.
  static Result<Regex> compile(std::string_view pattern, std::string_view where);
  // The regex that matches just this text.
  static Result<Regex> literal(std::string_view text, std::string_view where);

  // All matches in well-formed UTF-8, left to right, not overlapping; an empty match right behind the last match does
  // not count (as Oniguruma's iterator). Spans are appended.
  Result<> find_all(std::string_view text, std::vector<TextSpan>& out) const;

 private:
  Regex(std::shared_ptr<const parse::Pattern> pattern, std::string source)
      : pattern_(std::move(pattern)), source_(std::move(source)) {}
  std::shared_ptr<const parse::Pattern> pattern_;
  std::string source_;  // before it was rewritten
};

inline constexpr size_t kMaxTranslatedBytes = size_t{4} << 20;  // \w and \b take 10 kB each

// Oniguruma pattern -> PCRE2 pattern. exact_ranges: write every category as its ranges, even where PCRE2's own tables
// would do (they do if they are of Unicode 14, plus a few ranges).
Result<std::string> translate_regex(std::string_view pattern, std::string_view where, bool exact_ranges);

}  // namespace mortise
