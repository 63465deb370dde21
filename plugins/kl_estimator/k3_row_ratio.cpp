// k3_row_ratio: k3 times the row's importance ratio, s (exp(d) - d - 1) with d = ref_log_prob - log_prob and
// s = exp(mean over the row's unmasked tokens of log_prob - old_log_prob). The gradient flows through s too, to every
// token of the row. This is the KL term of TRL's GRPOTrainer for importance_sampling_level "sequence" with
// use_bias_correction_kl. Clamps as in k3_ratio: the estimate is clamped before it is multiplied, the mean log ratio to
// +-20. TRL has no clamps of d and k3: max_log_ratio = max_kl = inf.
#include <algorithm>
#include <cmath>

#include <mortise/cpp/mortise.hpp>

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

  // s, and d(sum of weight * kl over the row) / d log_prob of each token through s.
  struct Ratio {
    double s = 1, through_ratio = 0;
  };
  struct K3 {
    mortise::KlClamps clamps;
    MORTISE_HD mortise::Dual at(const mortise::TokenColumns& in, std::int64_t t) const {
      const mortise::Dual d =
          clamps.bounded_ratio(double(in.ref_log_prob[t]) - mortise::Dual{double(in.log_prob[t]), 1.0});
      return clamps.bounded(exp(d) - d - 1.0);
    }
  };
  struct Row {
    double log_ratio = 0, tokens = 0, weighted = 0;  // weighted: d(sum of weight * kl) / ds
  };
  struct Sum {
    using Sums = Row;
    K3 k3;
    MORTISE_HD void operator()(const mortise::TokenColumns& in, std::int64_t t, Row& sums) const {
      sums.log_ratio += in.log_ratio(t);
      sums.tokens += 1;
      sums.weighted += double(in.weight[t]) * k3.at(in, t).value;
    }
  };
  struct Value {
    K3 k3;
    MORTISE_HD mortise::TokenValue operator()(const mortise::TokenColumns& in, std::int64_t t, const Ratio& row) const {
      const mortise::Dual kl = k3.at(in, t);
      return {row.s * kl.value, row.s * double(in.weight[t]) * kl.slope + row.through_ratio};
    }
  };

  template <class Passes>
  void compute(const Passes& passes, const mortise::Call&) const {
    passes.require(passes.columns.old_log_prob, "old_log_prob");
    const K3 k3{clamps()};
    std::vector<Ratio> ratios;
    for (const Row& row : passes.row_sums(Sum{k3})) {
      const double mean = row.tokens > 0 ? row.log_ratio / row.tokens : 0.0;
      const double bounded_mean = std::clamp(mean, -20.0, 20.0), s = std::exp(bounded_mean);
      ratios.push_back({s, mean == bounded_mean && row.tokens > 0 ? s * row.weighted / row.tokens : 0.0});
    }
    passes.put(Value{k3}, ratios);
  }
};

}  // namespace

MORTISE_PASS_KL("k3_row_ratio", K3RowRatio)
