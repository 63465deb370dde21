/* TokenLoss, SequenceLoss and KlEstimator: a loss is one function of numbers, written once.
 *
 *     struct Clip : mortise::TokenLoss {
 *       double eps = param("clip_ratio", 0.2, "half width of the trust band").range(0, 1);
 *       template <class Real>
 *       Real token(Real logp, double old_logp, double adv) const {
 *         Real r = exp(logp - old_logp);
 *         return max(-adv * r, -adv * clamp(r, 1 - eps, 1 + eps));
 *       }
 *     };
 *     MORTISE_PACK(MORTISE_TOKEN_LOSS("acme_clip", Clip))
 *
 * The function runs on Dual (autodiff.hpp), which gives the exact gradient. A class that reports metrics declares them
 * and takes a Meter as last argument (meter.hpp). The loop around it (token_loop.hpp) exists for three x86 levels and
 * the best one is chosen at run time (dispatch.hpp). Cost: one pass over the tensors. [compute]
 */
#ifndef MORTISE_CPP_LOSSES_HPP_
#define MORTISE_CPP_LOSSES_HPP_

#include "meter.hpp"
#include "plugin.hpp"
#include "token_loop.hpp"

namespace mortise {

// Base of the three: select() found without qualification, for plain numbers too.
class LossFunction : public Plugin {
 public:
  static MORTISE_INLINE double select(bool c, double yes, double no) { return mortise::select(c, yes, no); }
  static MORTISE_INLINE Dual select(bool c, Dual yes, Dual no) { return mortise::select(c, yes, no); }
  static MORTISE_INLINE Dual select(bool c, Dual yes, double no) { return mortise::select(c, yes, no); }
  static MORTISE_INLINE Dual select(bool c, double yes, Dual no) { return mortise::select(c, yes, no); }
};

// Each token alone: token(logp, old_logp, adv[, meter]).
class TokenLoss : public LossFunction {};

// The row's mean log ratio decides: sequence(mean_log_ratio, adv[, meter]) is the loss of each token of the row, with
// mean_log_ratio = sum over unmasked tokens of (log_prob - old_log_prob) / max(their number, 1).
class SequenceLoss : public LossFunction {
 public:
  // Where d loss / d mean_log_ratio goes.
  enum class Gradient {
    kRow,       // to all tokens of the row, 1/n each: the true derivative
    kOwnToken,  // each token's to itself, undivided: GSPO's token form, lp - sg(lp) + sg(mean)
  };
  static constexpr Gradient gradient = Gradient::kRow;
};

// Per-token estimate of KL(policy || reference): token(logp, ref_logp) or token(logp, ref_logp, old_logp).
class KlEstimator : public LossFunction {};

namespace detail {

template <class T>
struct TokenLossEval {
  template <class Meter>
  static MORTISE_INLINE Dual eval(const T& plugin, Dual logp, double old_logp, double adv, Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.token(logp, old_logp, adv, meter);
    } else {
      return plugin.token(logp, old_logp, adv);
    }
  }
};

template <class T, class = void>
struct TakesOldLogProb : std::false_type {};
template <class T>
struct TakesOldLogProb<T, std::void_t<decltype(std::declval<const T&>().token(Dual{}, 0.0, 0.0))>> : std::true_type {};

template <class T>
struct KlEval {
  template <class Meter>
  static MORTISE_INLINE Dual eval(const T& plugin, Dual logp, double ref, double old, Meter&) {
    if constexpr (TakesOldLogProb<T>::value) {
      return plugin.token(logp, ref, old);
    } else {
      return plugin.token(logp, ref);
    }
  }
};

inline const float* floats(const mortise_tensor* t, const char* name, std::int64_t n) {
  const auto* data = static_cast<const float*>(mortise_tensor_data(t));
  if (data == nullptr && n > 0) fail(MORTISE_INVALID_ARGUMENT, std::string("the input '") + name + "' is missing");
  if (t != nullptr && t->device_type != MORTISE_CPU) {
    fail(MORTISE_UNIMPLEMENTED, std::string("the input '") + name + "' is not in host memory");
  }
  return data;
}
inline float* optional_floats(const mortise_tensor* t) { return static_cast<float*>(mortise_tensor_data(t)); }

inline TokenArrays loss_arrays(const mortise_policy_loss_in& in, const mortise_policy_loss_out& out) {
  const std::int64_t n = in.layout->num_tokens;
  TokenArrays arrays;
  arrays.x = floats(in.log_prob, "log_prob", n);
  arrays.a = floats(in.old_log_prob, "old_log_prob", n);
  arrays.b = floats(in.advantages, "advantages", n);
  arrays.mask = static_cast<const std::uint8_t*>(mortise_tensor_data(in.response_mask));
  arrays.weight = floats(in.weight, "weight", n);
  arrays.out = optional_floats(out.loss);
  arrays.grad = optional_floats(out.grad_log_prob);
  return arrays;
}

template <class T>
struct TokenLossPlugin {
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      over_tokens<T, TokenLossEval<T>>(plugin, call, *in->layout, loss_arrays(*in, *out));
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_POLICY_LOSS, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

template <class T>
struct SequenceLossPlugin {
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      over_rows<T>(plugin, call, *in->layout, loss_arrays(*in, *out), T::gradient == SequenceLoss::Gradient::kOwnToken);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_POLICY_LOSS, name, MORTISE_COUPLING_ROW, &vtable);
  }
};

template <class T>
struct KlEstimatorPlugin {
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_kl_estimator_in* in,
                              mortise_kl_estimator_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const std::int64_t n = in->layout->num_tokens;
      TokenArrays arrays;
      arrays.x = floats(in->log_prob, "log_prob", n);
      arrays.a = floats(in->ref_log_prob, "ref_log_prob", n);
      if (TakesOldLogProb<T>::value) arrays.b = floats(in->old_log_prob, "old_log_prob", n);
      arrays.mask = static_cast<const std::uint8_t*>(mortise_tensor_data(in->response_mask));
      arrays.weight = optional_floats(in->weight);
      arrays.out = optional_floats(out->kl);
      arrays.grad = optional_floats(out->grad_log_prob);
      over_tokens<T, KlEval<T>>(plugin, call, *in->layout, arrays);
    });
  }
  static constexpr mortise_kl_estimator_vtable vtable = {
      sizeof(mortise_kl_estimator_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_KL_ESTIMATOR, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_TOKEN_LOSS(name, ...) MORTISE_PLUGIN(name, TokenLossPlugin<__VA_ARGS__>)
#define MORTISE_SEQUENCE_LOSS(name, ...) MORTISE_PLUGIN(name, SequenceLossPlugin<__VA_ARGS__>)
#define MORTISE_KL_ESTIMATOR(name, ...) MORTISE_PLUGIN(name, KlEstimatorPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_LOSSES_HPP_
