// regex: does the completion match a pattern, or what the pattern captures equal the answer?
//
// PCRE2 syntax, UTF-8, compiled once and just-in-time where the machine allows it; "." also matches newlines, so that a
// pattern such as <think>.*</think> spans lines. A long completion is no obstacle (parse/pattern.h). The work per row
// is bounded (match_limit, and CPU time): a pattern that backtracks without end gives its row no reward and the reason,
// instead of hanging the run. With `column` set, the text of `group` in the last match must equal the column's value
// (white space at the ends ignored).
#include <optional>
#include <string>
#include <string_view>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/pattern.h"
#include "parse/text.h"

namespace {

std::string_view stripped(std::string_view s) { return mortise::parse::trim(s, " \t\r\n"); }

struct Regex : mortise::Reward {
  static constexpr const char* summary = "completion matches a regular expression, or its capture equals a column";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string pattern = param<std::string>("pattern", mortise::required, "PCRE2 pattern; searched for, not anchored");
  bool full = param("full", false, "the pattern must match the whole completion");
  bool ignore_case = param("ignore_case", false, "ignore the case of letters");
  std::string column =
      param("column", "", "column that the capture must equal, or a dotted path; empty: match only").column();
  std::int64_t group = param("group", 1, "which capture to compare; 0 is the whole match").range(0, 99);
  double hit = param("hit", 1.0, "score of a match");
  double miss = param("miss", 0.0, "score of anything else");
  std::int64_t match_limit = param("match_limit", 10000000, "most matching steps per row").range(1, 4294967295.0);

  std::optional<mortise::Pattern> compiled;

  void setup(mortise::Call) override {
    mortise::parse::PatternOptions options;
    options.dot_all = true;
    options.ignore_case = ignore_case;
    options.whole = full;
    options.match_limit = std::uint32_t(match_limit);
    compiled.emplace(pattern, options);
    const std::size_t captures = compiled->compiled().num_groups();
    if (!column.empty() && group > std::int64_t(captures)) {
      mortise::fail(MORTISE_INVALID_ARGUMENT, "group is " + std::to_string(group) + " but pattern '" + pattern +
                                                  "' has " + std::to_string(captures) + " captures");
    }
  }

  double score(const mortise::Row& row) const {
    std::optional<nlohmann::json> want;
    if (!column.empty()) {
      want = mortise::find_value(row, column);
      if (!want) return mortise::not_applicable;
    }
    if (!want) return compiled->found_in(row.completion()) ? hit : miss;
    const auto found = last_match(row.completion());
    row.note("pred", found ? stripped(*found) : std::string_view());
    if (!found) return miss;
    return stripped(*found) == stripped(mortise::as_text(*want)) ? hit : miss;
  }

  // The text of `group` in the last match; nothing where nothing matches.
  std::optional<std::string_view> last_match(std::string_view text) const {
    std::optional<std::string_view> found;
    mortise::parse::PatternSearch search(compiled->compiled(), text);
    while (search.next()) found = search.group(std::size_t(group)).in(text);
    if (search.fault()) compiled->refuse(*search.fault());
    return found;
  }
};

}  // namespace

MORTISE_REWARD("regex", Regex)
