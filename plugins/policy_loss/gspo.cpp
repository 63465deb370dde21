// gspo: clipped surrogate of the sequence's ratio (Group Sequence Policy Optimization, arXiv:2507.18071).
//
//   s = exp(mean over the row of log_prob - old_log_prob),  loss of each token = max(-A s, -A clamp(s, 1-low, 1+high)).
// By default the gradient is that of the token form lp - sg(lp) + sg(mean), as in verl: each token has its own
// gradient, not divided by the length, so that tokens keep their own advantage and weight. gradient = "row" gives the
// derivative of s itself, spread over the row (TRL, ms-swift's level "sequence"). Both are equal if the row's tokens
// have one advantage and one weight. verl caps the log ratio at 10 from above, TRL does not (max_log_ratio = inf).
// The paper clips to 1 - 3e-4 .. 1 + 4e-4 and takes a mean over tokens, then over rows (seq-mean-token-mean). A run
// that sets neither uses both. The default clip_ratio is verl's 0.2.
#include "clipped_sequence.h"

namespace {

struct Gspo : mortise::PublishedClip<mortise::ClippedSequence> {
  static constexpr const char* summary = "clipped surrogate of the sequence-level ratio (GSPO)";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); L = max(-A s, -A clamp(s, 1-low, 1+high)). "
      "arXiv:2507.18071 (low 3e-4, high 4e-4, mean over tokens and then over rows: a run's default)";

  Gspo() : PublishedClip(3e-4, 4e-4) {}

  std::string gradient_of =
      param("gradient", "token", "token: each token has its own gradient (verl); row: spread over the row (TRL)")
          .choices({"token", "row"});
  Gradient gradient = Gradient::kOwnToken;

  void setup(mortise::Call call) override {
    ClippedSequence::setup(call);
    if (gradient_of == "row") gradient = Gradient::kRow;
  }
};

}  // namespace

MORTISE_SEQUENCE_LOSS("gspo", Gspo)
