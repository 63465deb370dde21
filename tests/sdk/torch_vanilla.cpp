// vanilla (plugins/policy_loss/vanilla.cpp) written with libtorch, which must equal the portable one. Also losses with
// deliberate faults.
#include <mortise/cpp/torch.hpp>

namespace {

struct TorchVanilla : mortise::TorchLoss {
  static constexpr const char* summary = "PPO's clipped surrogate by autograd";
  static constexpr std::int32_t coupling = MORTISE_COUPLING_TOKEN;

  double clip_ratio = param("clip_ratio", 0.2, "half width of the trust band of the ratio").at_least(0);
  double clip_ratio_low = param("clip_ratio_low", mortise::none, "lower half width; not set: clip_ratio").range(0, 1);
  double clip_ratio_high = param("clip_ratio_high", mortise::none, "upper half width; not set: clip_ratio").at_least(0);
  double clip_ratio_c = param("clip_ratio_c", 3.0, "dual clip; 0: off").at_least(0);

  at::Tensor loss(const mortise::LossIn& x) const override {
    const double low = 1 - (mortise::is_set(clip_ratio_low) ? clip_ratio_low : clip_ratio);
    const double high = 1 + (mortise::is_set(clip_ratio_high) ? clip_ratio_high : clip_ratio);
    const at::Tensor log_ratio = (x.log_prob - x.old_log_prob).clamp(-20.0, 20.0);
    const at::Tensor r = log_ratio.exp();
    const at::Tensor plain = -x.advantages * r;
    const at::Tensor clipped = -x.advantages * r.clamp(low, high);
    x.metric("actor/pg_clipfrac", clipped > plain);
    x.metric("actor/ppo_kl", -log_ratio);
    const at::Tensor worse = at::max(plain, clipped);
    if (clip_ratio_c == 0) return worse;
    return at::where(x.advantages < 0, at::min(worse, -x.advantages * clip_ratio_c), worse);
  }
};

// GSPO's ratio of the row, straight: for row_mean and a gradient that spreads over tokens.
struct TorchRowRatio : mortise::TorchLoss {
  at::Tensor loss(const mortise::LossIn& x) const override {
    const at::Tensor mean = x.row_mean(x.log_prob - x.old_log_prob);
    return -x.advantages * mean.exp().index_select(0, x.row);
  }
};

struct WrongShape : mortise::TorchLoss {
  at::Tensor loss(const mortise::LossIn& x) const override { return x.log_prob.sum(); }
};
struct Throws : mortise::TorchLoss {
  at::Tensor loss(const mortise::LossIn& x) const override { return x.log_prob + at::ones({3, 5}); }
};

}  // namespace

MORTISE_PACK(MORTISE_TORCH_LOSS("torch_vanilla", TorchVanilla) MORTISE_TORCH_LOSS("torch_row_ratio", TorchRowRatio)
                 MORTISE_TORCH_LOSS("wrong_shape", WrongShape) MORTISE_TORCH_LOSS("throws", Throws))
