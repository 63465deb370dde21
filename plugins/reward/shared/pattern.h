// parse/pattern.h for the rewards: a fault throws Failure, so that its row has no reward and a reason, never a wrong
// one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parse/pattern.h"

namespace mortise {

// UTF-8, "." stops at a newline.
class Pattern {
 public:
  // Throws Failure (INVALID_ARGUMENT) with the place of the fault.
  explicit Pattern(const std::string& pattern, const parse::PatternOptions& options = unicode());

  [[nodiscard]] bool found_in(std::string_view text) const;
  // The first capture of every match.
  [[nodiscard]] std::vector<std::string> all(std::string_view text) const;
  // `replacement` with $1 for a capture.
  [[nodiscard]] std::string replace_all(std::string_view text, std::string_view replacement) const;

  [[nodiscard]] const parse::Pattern& compiled() const { return compiled_; }
  // Throws Failure: the row cannot be scored with this pattern.
  [[noreturn]] void refuse(const parse::PatternFault& fault) const;

 private:
  static parse::PatternOptions unicode();
  parse::Pattern compiled_;
};

// Unicode's simple case mapping, letter by letter. Text that is not UTF-8 does not change.
std::string lower_case(std::string_view text);

}  // namespace mortise
