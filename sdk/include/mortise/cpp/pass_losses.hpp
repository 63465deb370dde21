/* Losses and KL estimators that look beyond single tokens and have a CUDA build.
 *
 *     struct Mine : mortise::PassLoss {
 *       static constexpr bool accepts_cuda = true;
 *       static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
 *       template <class Passes>
 *       void compute(const Passes& passes, const mortise::Call& call) const;  // Passes::put sets the outputs
 *     };
 *     MORTISE_PACK(MORTISE_PASS_LOSS("mine", Mine))
 *
 * A KL estimator derives from KlEstimator and is put into the pack by MORTISE_PASS_KL. passes.hpp says what passes are.
 * Without a CUDA build, a BatchLoss (losses.hpp) or a batch KL (batch_kl.hpp) is simpler. [compute]
 */
#ifndef MORTISE_CPP_PASS_LOSSES_HPP_
#define MORTISE_CPP_PASS_LOSSES_HPP_

#include "losses.hpp"

namespace mortise {

class PassLoss : public LossFunction {
 public:
  static constexpr std::int32_t coupling = MORTISE_COUPLING_UPDATE;
};

namespace detail {

template <class T>
struct PassLossPlugin {
  static_assert(std::is_base_of_v<PassLoss, T>, "MORTISE_PASS_LOSS takes a class that derives from mortise::PassLoss");
  static_assert(HasPassCompute<T>::value,
                "a PassLoss has: template <class Passes> void compute(const Passes& passes, const mortise::Call& "
                "call) const; see mortise/cpp/passes.hpp");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const LossBatch batch(*in, *out, CudaBuildOf<T>::find() != nullptr);
      const TokenArrays arrays = pass_arrays(batch);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, batch.device_type)) return;
      plugin.compute(HostPasses(LossPasses::of(call, *in->layout, arrays), arrays), call);
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_POLICY_LOSS;
  static CudaLaunch cuda_launch() { return cuda_pass_launch_of<T, LossPasses>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_with_cuda<T>(MORTISE_KIND_POLICY_LOSS, name, T::coupling, &vtable);
  }
};

template <class T>
struct PassKlPlugin {
  static_assert(std::is_base_of_v<KlEstimator, T>,
                "MORTISE_PASS_KL takes a class that derives from mortise::KlEstimator");
  static_assert(
      HasPassCompute<T>::value,
      "a KL estimator in passes has: template <class Passes> void compute(const Passes& passes, const mortise::Call& "
      "call) const; see mortise/cpp/passes.hpp");
  static std::int32_t compute(void* self, mortise_call* raw, const mortise_kl_estimator_in* in,
                              mortise_kl_estimator_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      const std::int32_t device = device_of(in->log_prob, CudaBuildOf<T>::find() != nullptr);
      TokenArrays arrays = kl_arrays(*in, *out, in->old_log_prob != nullptr, device);
      arrays.weight = floats(in->weight, "weight", in->layout->num_tokens, device);
      if (CudaBuildOf<T>::run(plugin, call, *in->layout, arrays, device)) return;
      plugin.compute(HostPasses(KlPasses::of(call, *in->layout, arrays), arrays), call);
    });
  }
  static constexpr mortise_kl_estimator_vtable vtable = {
      sizeof(mortise_kl_estimator_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
#if MORTISE_HAS_CUDA_BUILD
  static constexpr const char* kKind = MORTISE_KIND_KL_ESTIMATOR;
  static CudaLaunch cuda_launch() { return cuda_pass_launch_of<T, KlPasses>(); }
#endif
  static mortise_descriptor describe(const char* name) {
    return describe_with_cuda<T>(MORTISE_KIND_KL_ESTIMATOR, name, T::coupling, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_PASS_LOSS(name, ...) MORTISE_LOOP_PLUGIN(name, PassLossPlugin<__VA_ARGS__>)
#define MORTISE_PASS_KL(name, ...) MORTISE_LOOP_PLUGIN(name, PassKlPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_PASS_LOSSES_HPP_
