// The PCRE2 character class for Oniguruma's \s, \w, \p{..} and [:..:], in Unicode 16.
//
// Names match as in Oniguruma: case, spaces, hyphens and underscores do not count. Names that are not in
// unicode/properties.h are left to PCRE2's own tables, which know what has not changed since Unicode 14.
// Thread rule: one thread at a time (it keeps what it made).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mortise {

class RegexClasses {
 public:
  // exact_ranges: every category as its ranges, even where PCRE2's own tables (Unicode 14) and a few ranges would do.
  explicit RegexClasses(bool exact_ranges) : exact_ranges_(exact_ranges) {}

  // Items of a class:
  [[nodiscard]] static std::string space();
  [[nodiscard]] static std::string not_space();
  [[nodiscard]] std::string digit() { return category("Nd"); }
  [[nodiscard]] std::string word();
  // [:name:]; nothing for an unknown name.
  [[nodiscard]] std::optional<std::string> posix(std::string_view name);

  // \p{name} or \P{name}: items if `in_class`, else a class. A negated one that items cannot express is a class in
  // either place; it begins with "[^".
  [[nodiscard]] std::string property(std::string_view name, bool negated, bool in_class);

 private:
  const std::string& category(std::string_view name);  // "Lu", "P", "LC"
  [[nodiscard]] std::string make_category(std::string_view name) const;
  std::string posix_word();
  std::string binary(std::string_view name);

  bool exact_ranges_;
  std::map<std::string, std::string, std::less<>> categories_;  // made so far
};

}  // namespace mortise
