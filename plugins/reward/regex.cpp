// regex: does the completion match a pattern, or what the pattern captures equal the answer?
//
// PCRE2 syntax, UTF-8, compiled once and just-in-time where the machine allows it; "." also matches newlines, so that a
// pattern such as <think>.*</think> spans lines. Matching work per row is bounded (match_limit): a pattern that runs
// away fails its row instead of hanging the run. With `column` set, the text of `group` in the last match must equal
// the column's value (white space at the ends ignored).
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include <mortise/cpp/mortise.hpp>

#include "../shared/columns.h"

namespace {

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string pcre2_text(int code) {
  PCRE2_UCHAR text[160];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

std::string_view stripped(std::string_view s) {
  const std::size_t first = s.find_first_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

struct Regex : mortise::Reward {
  static constexpr const char* summary = "completion matches a regular expression, or its capture equals a column";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string pattern = param<std::string>("pattern", mortise::required, "PCRE2 pattern; searched for, not anchored");
  bool full = param("full", false, "the pattern must match the whole completion");
  bool ignore_case = param("ignore_case", false, "match letters without case");
  std::string column = param("column", "", "column that the capture must equal, or a dotted path; empty: match only");
  std::int64_t group = param("group", 1, "which capture to compare; 0 is the whole match").range(0, 99);
  double hit = param("hit", 1.0, "score of a match");
  double miss = param("miss", 0.0, "score of anything else");
  std::int64_t match_limit = param("match_limit", 10000000, "most matching steps per row").range(1, 4294967295.0);

  std::unique_ptr<pcre2_code, FreeCode> code;

  void setup(mortise::Call) override {
    std::uint32_t options = PCRE2_UTF | PCRE2_DOTALL;
    if (ignore_case) options |= PCRE2_CASELESS;
    if (full) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
    int error = 0;
    PCRE2_SIZE at = 0;
    code.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &at, nullptr));
    if (!code) {
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "pattern '" + pattern + "' at character " + std::to_string(at) + ": " + pcre2_text(error));
    }
    std::uint32_t captures = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_CAPTURECOUNT, &captures);
    if (!column.empty() && group > std::int64_t(captures)) {
      mortise::fail(MORTISE_INVALID_ARGUMENT, "group is " + std::to_string(group) + " but pattern '" + pattern +
                                                  "' has " + std::to_string(captures) + " captures");
    }
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower, not different
  }

  double score(const mortise::Row& row) const {
    std::optional<nlohmann::json> want;
    if (!column.empty()) {
      want = mortise::find_value(row, column);
      if (!want) return mortise::not_applicable;
    }
    const auto found = last_match(row.completion(), !column.empty());
    if (!found) return miss;
    if (!want) return hit;
    return stripped(*found) == stripped(mortise::as_text(*want)) ? hit : miss;
  }

  // The text of `group` in the last match (or in the first, which costs less); nothing where nothing matches.
  std::optional<std::string> last_match(std::string_view text, bool last) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create_from_pattern(code.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, FreeContext> context(pcre2_match_context_create(nullptr));
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), std::uint32_t(match_limit));
    std::optional<std::string> found;
    std::size_t from = 0;
    while (from <= text.size()) {
      const int n = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, data.get(),
                                context.get());
      if (n == PCRE2_ERROR_NOMATCH) break;
      if (n < 0) mortise::fail(MORTISE_INVALID_ARGUMENT, "matching '" + pattern + "' stopped: " + pcre2_text(n));
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer(data.get());
      const auto g = last ? std::size_t(group) : 0;
      const bool captured = g < std::size_t(n) && at[2 * g] != PCRE2_UNSET && at[2 * g] <= at[2 * g + 1];
      found = captured ? std::string(text.substr(at[2 * g], at[2 * g + 1] - at[2 * g])) : std::string();
      if (!last) break;
      // After an empty match, go on behind the next character.
      from = at[1] > from ? at[1] : from + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
    }
    return found;
  }
};

}  // namespace

MORTISE_REWARD("regex", Regex)
