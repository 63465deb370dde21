// search_r1: verl's scorer of Search-R1's questions (arXiv:2503.09516). The text in the last <answer></answer> must be
// one of the right answers, both in lower case without punctuation, articles (a, an, the) and further spaces, as SQuAD
// compares: `score`; another answer scores format_score, none 0.
//
// method = "subem" takes an answer that holds a right one. Trap: with method "em" more than 10 <answer> or </answer>
// tags cost three quarters of the score, with "subem" nothing, as in verl.
#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "../shared/search_r1_truths.h"

namespace {

using namespace mortise::verl;

struct SearchR1 : mortise::Reward {
  static constexpr const char* summary = "verl's searchR1 scorer: the text in the last <answer> tags is a right answer";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string truth = param("ground_truth", "",
                            "column of the answers, or a dotted path: a text, a list, or {\"target\": ...}; empty: "
                            "reward_model.ground_truth, else ground_truth, else answer")
                          .column();
  std::string method = param("method", "em", "'em': equal; 'subem': contains a right answer").choices({"em", "subem"});
  double hit = param("score", 1.0, "score of a right answer");
  double format_score = param("format_score", 0.0, "score of another answer in tags");

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_truth(row, truth);
    if (!want) return mortise::not_applicable;
    const bool part = method == "subem";
    auto match = search_r1_match(row.completion(), search_r1_truths(*want), part);
    if (match && part) match->many_tags = false;
    return search_r1_score(match, hit, format_score);
  }
};

}  // namespace

MORTISE_REWARD("search_r1", SearchR1)
