// Regular expressions on PCRE2: the only ones of the tree (tests/lint/guarded_readers.sh holds the tree to it).
//
// A match has three outcomes: matched, not matched, or a fault with its reason (a limit, bad UTF-8, no memory). A fault
// is never "no match". Patterns are compiled just in time. Their backtracking stack starts small and grows, to 256 MiB
// for one match; if that is not enough, PCRE2's interpreter takes over, with the same limits and at most 1 GiB. So the
// length of a text does not decide whether a pattern works.
//
// Limits: bytes of the pattern, nested parentheses (250), steps of a match from one place, and CPU time per text. PCRE2
// has no limit for a search that starts at every character and reads to the end each time ("[a-z]*[0-9]" among
// letters). The search therefore advances in parts and looks at the clock between them. A place gets few steps at
// first, and more as long as there is time. A search with \G or with verbs such as (*COMMIT) has no parts: the clock is
// asked only when one place needs more steps. "\C" is refused, because it would split characters. A newline is "\n".
// Thread rule: a Pattern is constant after compile(); any number of threads may search with it at once. C++17.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parse/limits.h"
#include "parse/outcome.h"

namespace mortise::parse {

struct PatternOptions {
  bool ignore_case = false;
  bool dot_all = false;          // "." matches a newline too
  bool multi_line = false;       // "^" and "$" match at every line
  bool unicode_classes = false;  // \w, \d, \s and \b know all of Unicode
  bool whole = false;            // the match must be the whole text, as Python's fullmatch
  std::size_t max_pattern_bytes = kMaxPatternBytes;
  std::uint32_t match_limit = kMaxMatchSteps;  // backtracking steps of a match from one place
  double max_seconds = kMaxSearchSeconds;      // CPU time of all matches in one text, plus as much per MiB of it
};

struct PatternFault {
  enum class Kind {
    kPattern,   // the pattern cannot be used
    kText,      // the text is not UTF-8
    kLimit,     // the match takes too many steps or too much memory
    kMemory,    // the machine has no memory for the match
    kInternal,  // PCRE2 failed in a way that no input should cause
  };
  Kind kind = Kind::kInternal;
  std::string what;        // "at character 3: missing closing parenthesis", "more than 10000000 matching steps"
  std::size_t offset = 0;  // in the pattern (kPattern) or in the text (kText)
};

struct PatternSpan {
  static constexpr std::size_t kUnset = static_cast<std::size_t>(-1);
  std::size_t begin = kUnset;  // kUnset: the group took no part in the match
  std::size_t end = kUnset;
  [[nodiscard]] bool is_set() const { return begin != kUnset && begin <= end; }
  [[nodiscard]] std::string_view in(std::string_view text) const {
    return is_set() ? text.substr(begin, end - begin) : std::string_view();
  }
};

struct MatchScratch;  // defined in pattern.cpp

class Pattern {
 public:
  static Outcome<Pattern, PatternFault> compile(std::string_view pattern, const PatternOptions& options = {});

  [[nodiscard]] std::size_t num_groups() const;  // without the whole match
  [[nodiscard]] const std::string& source() const;

  // Whether the pattern matches anywhere (or, with `whole`, matches all of it).
  [[nodiscard]] Outcome<bool, PatternFault> matches(std::string_view text) const;

  // The text with every match replaced. In the replacement, "$1" to "$9" are groups, "$0" is the match, and "$$" is a
  // dollar sign.
  [[nodiscard]] Outcome<std::string, PatternFault> replace_all(std::string_view text,
                                                               std::string_view replacement) const;

 private:
  friend class PatternSearch;
  struct Code;
  explicit Pattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// Matches of one pattern in one text, which must both outlive it. UTF-8 is checked once, not per match.
class PatternSearch {
 public:
  enum class Utf8 { kCheck, kKnownGood };
  PatternSearch(const Pattern& pattern, std::string_view text, Utf8 utf8 = Utf8::kCheck);
  PatternSearch(const PatternSearch&) = delete;
  PatternSearch& operator=(const PatternSearch&) = delete;
  ~PatternSearch();

  // Looks for a match that begins at `from` or later. False if there is none, or if fault() has a value.
  [[nodiscard]] bool find(std::size_t from);
  // Looks for the next match behind the one before, as Python's finditer. False: as find.
  [[nodiscard]] bool next();

  [[nodiscard]] const std::optional<PatternFault>& fault() const { return fault_; }
  // Group of the match that find or next found last. Group 0 is the whole match. Precondition: index <= num_groups().
  [[nodiscard]] PatternSpan group(std::size_t index = 0) const;

 private:
  int match(std::size_t from, std::size_t last_start);
  struct Reach;  // defined in pattern.cpp
  bool is_late(std::int64_t now);
  bool fail_late();  // false, as find() returns it

  const Pattern::Code& code_;
  std::string_view text_;
  std::unique_ptr<MatchScratch> scratch_;
  std::size_t next_from_ = 0;
  std::uint32_t num_finds_ = 0;
  std::int64_t deadline_ns_ = 0;  // the thread's CPU time at which it ends; 0: the clock has not been asked yet
  std::optional<PatternFault> fault_;
};

// The Unicode version of the tables behind \p{...}: "14.0.0".
[[nodiscard]] std::string pattern_unicode_version();

// Unicode's simple case mapping, letter by letter.
[[nodiscard]] Outcome<std::string, PatternFault> lower_case(std::string_view text);

}  // namespace mortise::parse
