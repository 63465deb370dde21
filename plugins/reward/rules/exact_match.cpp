// exact_match: does the completion equal the row's answer?
//
// Compared as bytes after the chosen trimming; the answer may be text, a number or a list of accepted answers, found by
// a dotted path ("reward_model.ground_truth"). A row without an answer gets no reward (not 0).
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "parse/text.h"

namespace {

struct ExactMatch : mortise::Reward {
  static constexpr const char* summary = "completion equals the answer column";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string column =
      param("column", "answer", "data column with the answer, or a dotted path into a JSON column").column();
  bool strip = param("strip", true, "ignore white space at both ends of the completion and the answer");
  bool ignore_case = param("ignore_case", false, "ignore the case of ASCII letters");
  double hit = param("hit", 1.0, "score of a match");
  double miss = param("miss", 0.0, "score of anything else");

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_value(row, column);
    if (!want) return mortise::not_applicable;
    const std::string got = normal(row.completion());
    if (want->is_array()) {
      for (const auto& one : *want) {
        if (normal(mortise::as_text(one)) == got) return hit;
      }
      return miss;
    }
    return normal(mortise::as_text(*want)) == got ? hit : miss;
  }

  std::string normal(std::string_view text) const {
    if (strip) text = mortise::parse::trim(text);
    std::string out(text);
    for (char& c : out) {
      if (ignore_case && c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    }
    return out;
  }
};

}  // namespace

MORTISE_REWARD("exact_match", ExactMatch)
