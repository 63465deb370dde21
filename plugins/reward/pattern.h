// PCRE2 patterns for the rewards' own use; `regex` has the user's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

// UTF-8, "." stops at a newline, matching work bounded. Text that is no UTF-8 matches nothing.
class Pattern {
 public:
  // Throws Failure (INVALID_ARGUMENT) with the place of the fault.
  explicit Pattern(const std::string& pattern);
  Pattern(Pattern&&) noexcept;
  ~Pattern();

  [[nodiscard]] bool found_in(std::string_view text) const;
  // The first capture of every match.
  [[nodiscard]] std::vector<std::string> all(std::string_view text) const;
  // `replacement` with $1 for a capture and $$ for a dollar sign.
  [[nodiscard]] std::string replace_all(const std::string& text, const std::string& replacement) const;

 private:
  friend std::string lower_case(const std::string& text);
  [[nodiscard]] std::string substitute(const std::string& text, const std::string& replacement, unsigned options) const;
  struct Code;
  std::unique_ptr<Code> code_;
};

// Unicode's simple case mapping, letter by letter. Text that is no UTF-8 stays as it is.
std::string lower_case(const std::string& text);

}  // namespace mortise
