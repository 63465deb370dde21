// gspo_token: GSPO with advantages that differ between tokens (GSPO-token, arXiv:2507.18071 section 4.3).
//
//   s = exp(mean over the row of log_prob - old_log_prob),  s_t = sg(s) exp(log_prob - sg(log_prob)),
//   L = max(-A s_t, -A clamp(s_t, 1 - low, 1 + high)),  dL/dlog_prob = -A s where nothing is clipped.
// This is ms-swift's level "sequence_token". verl's gspo uses this form too, so it differs from `gspo` only by its cap
// of the log ratio (20 here, 10 there). Clip range and aggregation of a run: as for gspo.
#include "clipped_sequence.h"

namespace {

struct GspoToken : mortise::PublishedClip<mortise::ClippedSequence> {
  static constexpr const char* summary =
      "sequence-level ratio with each token's own advantage and gradient (GSPO-token)";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); s_t = sg(s) exp(log_prob - sg(log_prob)); "
      "L = max(-A s_t, -A clamp(s_t, 1-low, 1+high)). arXiv:2507.18071 4.3 (low 3e-4, high 4e-4, mean over tokens and "
      "then over rows: a run's default)";
  static constexpr Gradient gradient = Gradient::kOwnToken;

  GspoToken() : PublishedClip(3e-4, 4e-4, 20.0) {}
};

}  // namespace

MORTISE_SEQUENCE_LOSS("gspo_token", GspoToken)
