/* TokenLoss and its siblings, and KlEstimator: a loss is one function of numbers, written once.
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
 * The function runs on Dual (autodiff.hpp), which gives the exact gradient. With doubles, as here, it is computed in
 * double; with a second template parameter in their place,
 *     template <class Real, class Number>
 *     Real token(Real logp, Number old_logp, Number adv) const
 * in float32 (Number is mortise::Single): about twice as fast, and within 1e-6 of the value where the formula does
 * not take small differences of large numbers. Metrics are summed in double either way. The built-in losses of single
 * tokens are float32 ones; KL estimators and losses that look at rows, groups or updates are always in double. A class
 * that reports metrics declares them and takes a Meter as last argument (meter.hpp). The loop around it
 * (token_loop.hpp) exists for three x86 levels and the best one is chosen at run time (dispatch.hpp). cuda_loop.hpp
 * makes a CUDA kernel of the same function. Cost: one pass over the tensors. [compute]
 */
#ifndef MORTISE_CPP_LOSSES_HPP_
#define MORTISE_CPP_LOSSES_HPP_

#include "cuda_loop.hpp"
#include "cuda_passes.hpp"
#include "loss_batch.hpp"
#include "meter.hpp"
#include "passes.hpp"
#include "plugin.hpp"
#include "token_loop.hpp"

namespace mortise {

namespace detail {
// For code in which LossFunction::select does not hide the others.
template <class Yes, class No>
MORTISE_HD MORTISE_INLINE auto chosen(bool condition, Yes yes, No no) {
  return select(condition, yes, no);
}
}  // namespace detail

// The base of all losses. select() is found without qualification, for plain numbers too.
class LossFunction : public Plugin {
 public:
  // A class hides this with true if its tensors may lie on a CUDA device (mortise.device/1). A BatchLoss then looks at
  // LossBatch::device_type. All others take CUDA tensors if nvcc has compiled their functions (cuda_loop.hpp). A
  // ContextLoss is then written in passes (passes.hpp).
  static constexpr bool accepts_cuda = false;

  template <class Yes, class No>
  static MORTISE_HD MORTISE_INLINE auto select(bool condition, Yes yes, No no) {
    return detail::chosen(condition, yes, no);
  }
};

// Each token alone: token(logp, old_logp, adv[, meter]), in double or Number.
class TokenLoss : public LossFunction {};

// The same with the sampler's log-prob: token(logp, old_logp, rollout_logp, adv[, meter]), in double or Number.
class RolloutLoss : public LossFunction {
 public:
  static constexpr const char* requires_inputs[] = {"rollout_log_prob", nullptr};
};

// Each token with one number from its context (its row, group or update), which is a constant for the gradient.
// context(batch, call, numbers) fills it for the unmasked tokens; then token(logp, old_logp, adv, number[, meter])
// runs. In passes it is context(passes, call), which sets the numbers.
class ContextLoss : public LossFunction {
 public:
  static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
};

// Any other loss: compute(batch, call) sets loss and gradient of every unmasked token (LossBatch::put).
class BatchLoss : public LossFunction {
 public:
  static constexpr std::int32_t coupling = MORTISE_COUPLING_UPDATE;
};

// A loss of the row's mean log ratio: sequence(mean_log_ratio, adv[, meter]) is the loss of each token of the row, with
// mean_log_ratio = sum over unmasked tokens of (log_prob - old_log_prob) / max(their number, 1).
class SequenceLoss : public LossFunction {
 public:
  // Which tokens get d loss / d mean_log_ratio. A class hides `gradient` with its own, a constant or a member set in
  // setup().
  enum class Gradient {
    kRow,       // to all tokens of the row, 1/n each: the true derivative
    kOwnToken,  // each token's to itself, undivided: GSPO's token form, lp - sg(lp) + sg(mean)
  };
  static constexpr Gradient gradient = Gradient::kRow;
};

// Per-token estimate of KL(policy || reference): token(logp, ref_logp) or token(logp, ref_logp, old_logp).
class KlEstimator : public LossFunction {};

namespace detail {

// Whether an author's class has token(...), sequence(...) or the like, const and public, for these arguments. The body
// of a template with an explicit return type is not checked.
template <class Void, class T, class... Args>
struct HasToken : std::false_type {};
template <class T, class... Args>
struct HasToken<std::void_t<decltype(std::declval<const T&>().token(std::declval<Args>()...))>, T, Args...>
    : std::true_type {};
template <class Void, class T, class... Args>
struct HasSequence : std::false_type {};
template <class T, class... Args>
struct HasSequence<std::void_t<decltype(std::declval<const T&>().sequence(std::declval<Args>()...))>, T, Args...>
    : std::true_type {};
template <class T, class N, class... Numbers>
constexpr bool takes_token() {
  if constexpr (MetricsOf<T>::slots > 0) {
    return HasToken<void, T, BasicDual<N>, Numbers..., Meter<T, N>&>::value;
  } else {
    return HasToken<void, T, BasicDual<N>, Numbers...>::value;
  }
}
template <class T, class... Args>
constexpr bool takes_sequence() {
  if constexpr (MetricsOf<T>::slots > 0) {
    return HasSequence<void, T, Args..., Meter<T, double>&>::value;
  } else {
    return HasSequence<void, T, Args...>::value;
  }
}

template <class T>
struct TokenLossEval : OfToken {
  using Number = std::conditional_t<takes_token<T, Single, Single, Single>(), Single, double>;
  template <class Meter>
  static MORTISE_HD MORTISE_INLINE auto eval(const T& plugin, BasicDual<Number> logp, Number old_logp, Number adv,
                                             Number, Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.token(logp, old_logp, adv, meter);
    } else {
      return plugin.token(logp, old_logp, adv);
    }
  }
};

template <class T>
struct RolloutLossEval : OfToken {
  using Number = std::conditional_t<takes_token<T, Single, Single, Single, Single>(), Single, double>;
  static constexpr Third third = Third::kFloats;
  template <class Meter>
  static MORTISE_HD MORTISE_INLINE auto eval(const T& plugin, BasicDual<Number> logp, Number old_logp, Number adv,
                                             Number rollout, Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.token(logp, old_logp, rollout, adv, meter);
    } else {
      return plugin.token(logp, old_logp, rollout, adv);
    }
  }
};

template <class T>
struct ContextLossEval : OfToken {
  using Number = double;
  static constexpr Third third = Third::kContext;
  template <class Meter>
  static MORTISE_HD MORTISE_INLINE Dual eval(const T& plugin, Dual logp, double old_logp, double adv, double number,
                                             Meter& meter) {
    if constexpr (MetricsOf<T>::slots > 0) {
      return plugin.token(logp, old_logp, adv, number, meter);
    } else {
      return plugin.token(logp, old_logp, adv, number);
    }
  }
};

template <class T>
using TakesOldLogProb = HasToken<void, T, Dual, double, double>;

template <class T>
struct KlEval : OfToken {
  using Number = double;
  template <class Meter>
  static MORTISE_HD MORTISE_INLINE Dual eval(const T& plugin, Dual logp, double ref, double old, double, Meter&) {
    if constexpr (TakesOldLogProb<T>::value) {
      return plugin.token(logp, ref, old);
    } else {
      return plugin.token(logp, ref);
    }
  }
};

inline TokenArrays loss_arrays(const LossBatch& batch) {
  TokenArrays arrays;
  arrays.x = batch.log_prob;
  arrays.a = batch.old_log_prob;
  arrays.b = batch.advantages;
  arrays.mask = batch.mask;
  arrays.weight = batch.weight;
  arrays.out = batch.loss;
  arrays.grad = batch.grad;
  return arrays;
}

inline TokenArrays kl_arrays(const mortise_kl_estimator_in& in, const mortise_kl_estimator_out& out,
                             bool needs_old_log_prob, std::int32_t device) {
  const std::int64_t n = in.layout->num_tokens;
  TokenArrays arrays;
  arrays.x = floats(in.log_prob, "log_prob", n, device);
  arrays.a = floats(in.ref_log_prob, "ref_log_prob", n, device);
  if (needs_old_log_prob) arrays.b = floats(in.old_log_prob, "old_log_prob", n, device);
  arrays.mask = static_cast<const std::uint8_t*>(mortise_tensor_data(in.response_mask));
  arrays.weight = optional_floats(in.weight);
  arrays.out = optional_floats(out.kl);
  arrays.grad = optional_floats(out.grad_log_prob);
  return arrays;
}

// With the columns that passes read.
inline TokenArrays pass_arrays(const LossBatch& batch) {
  TokenArrays arrays = loss_arrays(batch);
  arrays.c = batch.rollout_log_prob;
  arrays.d = batch.rollout_is_weights;
  arrays.update_index = batch.update_index;
  return arrays;
}

inline constexpr std::int32_t kCpuAndCuda[] = {MORTISE_CPU, MORTISE_CUDA};
inline constexpr mortise_device kTakesCuda = {sizeof(mortise_device), 0, 2, kCpuAndCuda};

template <class T>
const void* cuda_extension(const char* id) noexcept {
  return std::string_view(id) == MORTISE_EXT_DEVICE ? &kTakesCuda : T::plugin_extension(id);
}

// The CUDA build of a class that is described under this name; several names of one class share it. Hidden, so that no two
// packs share it.
template <class T>
struct __attribute__((visibility("hidden"))) CudaBuildOf {
  static inline const char *kind = "", *name = "";
  static CudaLaunch find() { return T::accepts_cuda ? find_cuda_build(kind, name) : nullptr; }
  static const void* extension(const char* id) noexcept {
    return find() != nullptr ? cuda_extension<T>(id) : T::plugin_extension(id);
  }
  // Runs it if the call's tensors are on a device; false: they are in host memory.
  static bool run(const T& plugin, const Call& call, const mortise_layout& layout, const TokenArrays& arrays,
                  std::int32_t device_type) {
    if (device_type != MORTISE_CUDA) return false;
    find()(&plugin, call, layout, arrays);
    return true;
  }
};

// The descriptor of a class that nvcc may have compiled.
template <class T, class Vtable>
mortise_descriptor describe_with_cuda(const char* kind, const char* name, std::int32_t coupling, const Vtable* vtable) {
  mortise_descriptor d = detail::describe<T>(kind, name, coupling, vtable);
  if (T::accepts_cuda) {
    CudaBuildOf<T>::kind = kind;
    CudaBuildOf<T>::name = name;
    d.get_extension = CudaBuildOf<T>::extension;
  }
  return d;
}
// The descriptor of a class whose loops over tokens fill every element of the outputs.
template <class T, class Vtable>
mortise_descriptor describe_loop(const char* kind, const char* name, std::int32_t coupling, const Vtable* vtable) {
  mortise_descriptor d = describe_with_cuda<T>(kind, name, coupling, vtable);
  d.flags |= MORTISE_FLAG_WRITES_ALL;
  return d;
}

template <class T>
struct TokenLossPlugin {
  static_assert(std::is_base_of_v<TokenLoss, T>,
                "MORTISE_TOKEN_LOSS takes a class that derives from mortise::TokenLoss");
  static_assert(takes_token<T, double, double, double>() || takes_token<T, Single, Single, Single>(),
                "a TokenLoss has: template <class Real> Real token(Real logp, double old_logp, double adv) const; "
                "with a Meter& behind adv where the class declares `metrics`, and only there");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const LossBatch batch(*in, *out, CudaBuildOf<T>::find() != nullptr);
      const TokenArrays arrays = loss_arrays(batch);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, batch.device_type)) return;
      over_tokens<T, TokenLossEval<T>>(plugin, call, *in->layout, arrays);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_POLICY_LOSS;
  static CudaLaunch cuda_launch() { return cuda_launch_of<T, TokenLossEval<T>>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_loop<T>(MORTISE_KIND_POLICY_LOSS, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

template <class T>
struct RolloutLossPlugin {
  static_assert(std::is_base_of_v<RolloutLoss, T>,
                "MORTISE_ROLLOUT_LOSS takes a class that derives from mortise::RolloutLoss");
  static_assert(takes_token<T, double, double, double, double>() || takes_token<T, Single, Single, Single, Single>(),
                "a RolloutLoss has: template <class Real> Real token(Real logp, double old_logp, double rollout_logp, "
                "double adv) const; with a Meter& behind adv where the class declares `metrics`, and only there");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const LossBatch batch(*in, *out, CudaBuildOf<T>::find() != nullptr);
      TokenArrays arrays = loss_arrays(batch);
      arrays.c = batch.required_rollout_log_prob();
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, batch.device_type)) return;
      over_tokens<T, RolloutLossEval<T>>(plugin, call, *in->layout, arrays);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_POLICY_LOSS;
  static CudaLaunch cuda_launch() { return cuda_launch_of<T, RolloutLossEval<T>>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_loop<T>(MORTISE_KIND_POLICY_LOSS, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

template <class T>
struct ContextLossPlugin {
  static_assert(std::is_base_of_v<ContextLoss, T>,
                "MORTISE_CONTEXT_LOSS takes a class that derives from mortise::ContextLoss");
  static_assert(takes_token<T, double, double, double, double>(),
                "a ContextLoss has: template <class Real> Real token(Real logp, double old_logp, double adv, double "
                "number) const; with a Meter& behind number where the class declares `metrics`, and only there");
  static_assert(!T::accepts_cuda || HasPassContext<T>::value,
                "a ContextLoss with accepts_cuda has: template <class Passes> void context(const Passes& passes, const "
                "mortise::Call& call) const; see mortise/cpp/passes.hpp");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const LossBatch batch(*in, *out, CudaBuildOf<T>::find() != nullptr);
      TokenArrays arrays = pass_arrays(batch);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, batch.device_type)) return;
      std::vector<double> numbers;
      if constexpr (HasPassContext<T>::value) {
        plugin.context(HostPasses(LossPasses::of(call, *in->layout, arrays), arrays, &numbers), call);
      } else {
        numbers.resize(std::size_t(batch.num_tokens()));
        plugin.context(batch, call, Span<double>(numbers));
      }
      arrays.context = numbers.empty() ? nullptr : numbers.data();
      over_tokens<T, ContextLossEval<T>>(plugin, call, *in->layout, arrays);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_POLICY_LOSS;
  static CudaLaunch cuda_launch() { return cuda_context_launch_of<T, ContextLossEval<T>>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_loop<T>(MORTISE_KIND_POLICY_LOSS, name, T::coupling, &vtable);
  }
};

template <class T>
struct BatchLossPlugin {
  static_assert(std::is_base_of_v<BatchLoss, T>,
                "MORTISE_BATCH_LOSS takes a class that derives from mortise::BatchLoss");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw,
                  [&](const T& plugin, Call call) { plugin.compute(LossBatch(*in, *out, T::accepts_cuda), call); });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    mortise_descriptor d = detail::describe<T>(MORTISE_KIND_POLICY_LOSS, name, T::coupling, &vtable);
    if (T::accepts_cuda) d.get_extension = cuda_extension<T>;
    return d;
  }
};

template <class T>
struct SequenceLossPlugin {
  static_assert(std::is_base_of_v<SequenceLoss, T>,
                "MORTISE_SEQUENCE_LOSS takes a class that derives from mortise::SequenceLoss");
  static_assert(
      takes_sequence<T, Dual, double>(),
      "a SequenceLoss has: template <class Real> Real sequence(Real mean_log_ratio, double adv) const; with a "
      "Meter& behind adv where the class declares `metrics`, and only there");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const LossBatch batch(*in, *out, CudaBuildOf<T>::find() != nullptr);
      const TokenArrays arrays = loss_arrays(batch);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, batch.device_type)) return;
      const bool own_token = plugin.gradient == SequenceLoss::Gradient::kOwnToken;
      over_rows<T>(plugin, call, *in->layout, arrays, own_token);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_POLICY_LOSS;
  static CudaLaunch cuda_launch() { return cuda_launch_of<T, SequenceEval<T>>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_loop<T>(MORTISE_KIND_POLICY_LOSS, name, MORTISE_COUPLING_ROW, &vtable);
  }
};

template <class T>
struct KlEstimatorPlugin {
  static_assert(std::is_base_of_v<KlEstimator, T>,
                "MORTISE_KL_ESTIMATOR takes a class that derives from mortise::KlEstimator");
  static_assert(HasToken<void, T, Dual, double>::value || TakesOldLogProb<T>::value,
                "a KlEstimator has: template <class Real> Real token(Real logp, double ref_logp) const; a third "
                "argument is old_logp");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_kl_estimator_in* in,
                              mortise_kl_estimator_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const std::int32_t device = device_of(in->log_prob, CudaBuildOf<T>::find() != nullptr);
      const TokenArrays arrays = kl_arrays(*in, *out, TakesOldLogProb<T>::value, device);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, device)) return;
      over_tokens<T, KlEval<T>>(plugin, call, *in->layout, arrays);
    });
  }
  static constexpr mortise_kl_estimator_vtable vtable = {
      sizeof(mortise_kl_estimator_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_KL_ESTIMATOR;
  static CudaLaunch cuda_launch() { return cuda_launch_of<T, KlEval<T>>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_loop<T>(MORTISE_KIND_KL_ESTIMATOR, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#if MORTISE_HAS_CUDA_BUILD && defined(MORTISE_CUDA_BUILD_ALONE)
#define MORTISE_LOOP_PLUGIN(name, ...) MORTISE_CUDA_BUILD(name, __VA_ARGS__)
#define MORTISE_OTHER_PLUGIN(name, ...)
#else
#define MORTISE_LOOP_PLUGIN(name, ...) MORTISE_PLUGIN(name, __VA_ARGS__) MORTISE_CUDA_BUILD(name, __VA_ARGS__)
#define MORTISE_OTHER_PLUGIN(name, ...) MORTISE_PLUGIN(name, __VA_ARGS__)
#endif
#define MORTISE_TOKEN_LOSS(name, ...) MORTISE_LOOP_PLUGIN(name, TokenLossPlugin<__VA_ARGS__>)
#define MORTISE_ROLLOUT_LOSS(name, ...) MORTISE_LOOP_PLUGIN(name, RolloutLossPlugin<__VA_ARGS__>)
#define MORTISE_CONTEXT_LOSS(name, ...) MORTISE_LOOP_PLUGIN(name, ContextLossPlugin<__VA_ARGS__>)
#define MORTISE_BATCH_LOSS(name, ...) MORTISE_OTHER_PLUGIN(name, BatchLossPlugin<__VA_ARGS__>)
#define MORTISE_SEQUENCE_LOSS(name, ...) MORTISE_LOOP_PLUGIN(name, SequenceLossPlugin<__VA_ARGS__>)
#define MORTISE_KL_ESTIMATOR(name, ...) MORTISE_LOOP_PLUGIN(name, KlEstimatorPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_LOSSES_HPP_
