// k3_row_ratio: k3 times the row's importance ratio, s (exp(d) - d - 1) with d = ref_log_prob - log_prob and
// s = exp(mean over the row's unmasked tokens of log_prob - old_log_prob). The gradient flows through s too, to every
// token of the row. This is the KL term of TRL's GRPOTrainer for importance_sampling_level "sequence" with
// use_bias_correction_kl. Clamps as in k3_ratio: the estimate is clamped before it is multiplied, the mean log ratio to
// +-20. TRL has no clamps of d and k3: max_log_ratio = max_kl = inf.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/batch_kl.hpp>

#include "../shared/kl_clamp.h"

namespace {

struct K3RowRatio : mortise::ClampedKl {
  static constexpr const char* summary = "the row's importance ratio times k3: TRL's KL at sequence level";
  static constexpr const char* doc =
      "s (exp(d) - d - 1), s = exp(mean of log_prob - old_log_prob over the row), d = ref_log_prob - log_prob";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
  static constexpr const char* requires_inputs[] = {"old_log_prob", nullptr};

  K3RowRatio() : ClampedKl(20.0, 10.0) {}

  mortise::Dual k3(double logp, double ref) const {
    const mortise::Dual d = bounded_ratio(ref - mortise::Dual{logp, 1.0});
    return bounded(exp(d) - d - 1.0);
  }

  void compute(const mortise::KlBatch& batch, mortise::Call call) const {
    const float* old = batch.required_old_log_prob();
    batch.for_rows(call, [&](std::int64_t row) {
      double log_ratios = 0, tokens = 0, weighted = 0;  // weighted: d(sum weight * kl) / ds
      for (std::int64_t t = batch.begin(row); t < batch.end(row); ++t) {
        if (batch.mask[t] == 0) continue;
        log_ratios += double(batch.log_prob[t]) - double(old[t]);
        tokens += 1;
        weighted += double(batch.weight[t]) * k3(batch.log_prob[t], batch.ref_log_prob[t]).value;
      }
      if (tokens == 0) return;
      const double mean = log_ratios / tokens, bounded_mean = std::clamp(mean, -20.0, 20.0);
      const double s = std::exp(bounded_mean);
      const double through_ratio = mean == bounded_mean ? s * weighted / tokens : 0.0;
      for (std::int64_t t = batch.begin(row); t < batch.end(row); ++t) {
        if (batch.mask[t] == 0) continue;
        const mortise::Dual kl = k3(batch.log_prob[t], batch.ref_log_prob[t]);
        batch.put(t, s * kl.value, s * double(batch.weight[t]) * kl.slope + through_ratio);
      }
    });
  }
};

}  // namespace

MORTISE_BATCH_KL("k3_row_ratio", K3RowRatio)
