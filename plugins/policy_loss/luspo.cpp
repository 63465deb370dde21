// luspo: length-unbiased sequence policy optimization (arXiv:2602.05261), GSPO times the length of the row.
//
//   s = exp(mean over the row of log_prob - old_log_prob),  L_row = n max(-A s, -A clamp(s, 1 - low, 1 + high)),
//   the mean over rows. n times a row's loss, averaged over rows, is the sum over its n tokens: the aggregation
//   seq-mean-token-sum of GSPO's loss, which is what this loss asks for; it multiplies nothing itself.
// The gradient is the derivative of s, 1/n to each token. TRL: importance_sampling_level "sequence" and edges of
// 2e-3 / 2.5e-3, which a run takes if it sets none; clip_ratio by itself is verl's 0.2. Traps: with another aggregation
// this is GSPO again; TRL counts rows without tokens in the mean (actor.loss_agg_rows = "all") and with beta lets the
// KL of padding in.
#include "clipped_sequence.h"

namespace {

struct Luspo : mortise::PublishedClip<mortise::ClippedSequence> {
  static constexpr const char* summary = "GSPO with each row weighted by its length (LUSPO)";
  static constexpr const char* doc =
      "s = exp(mean of log_prob - old_log_prob over the row); L = n max(-A s, -A clamp(s, 1-low, 1+high)), n by the "
      "aggregation seq-mean-token-sum. arXiv:2602.05261";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;  // the gradient is the true one

  std::string loss_agg_mode =
      mortise::own_aggregation(param("loss_agg_mode", "seq-mean-token-sum", mortise::kAggregationDoc));

  Luspo() : PublishedClip(2e-3, 2.5e-3, 20.0) {}
};

}  // namespace

MORTISE_SEQUENCE_LOSS("luspo", Luspo)
