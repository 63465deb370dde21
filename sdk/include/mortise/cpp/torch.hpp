/* TorchLoss: a policy loss written with libtorch and differentiated by its autograd. The torch-locked tier.
 *
 *     #include <mortise/cpp/torch.hpp>
 *     struct Clip : mortise::TorchLoss {
 *       double eps = param("clip_ratio", 0.2, "half width of the trust band").range(0, 1);
 *       at::Tensor loss(const mortise::LossIn& x) const override {
 *         const at::Tensor r = (x.log_prob - x.old_log_prob).exp();
 *         return at::max(-x.advantages * r, -x.advantages * r.clamp(1 - eps, 1 + eps));
 *       }
 *     };
 *     MORTISE_PACK(MORTISE_TORCH_LOSS("acme_clip", Clip))
 *
 * Built with mortise_add_pack(... TORCH). Such a pack is bound to one libtorch: its note carries the exact version, and
 * a program with another one, or with none, refuses it. For research code; a loss of mortise.hpp needs no libtorch, is
 * several times faster on the CPU, and keeps loading. Cost: autograd's. [compute]
 */
#ifndef MORTISE_CPP_TORCH_HPP_
#define MORTISE_CPP_TORCH_HPP_

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "mortise.hpp"

namespace mortise {

// One call's inputs as tensors: flat [N] tokens on the call's device. All inputs of masked tokens are 0, so that they
// cannot affect the loss. Valid until loss() returns. log_prob and entropy are the leaves of the gradient.
struct LossIn {
  at::Tensor log_prob, old_log_prob, advantages;  // [N] f32
  at::Tensor mask;                                // [N] bool
  at::Tensor weight;                              // [N] f32: the token's share of the aggregated loss
  at::Tensor row;                                 // [N] i64: the token's row, out of num_rows
  std::int64_t num_rows = 0;
  at::Tensor ref_log_prob, rollout_log_prob, rollout_is_weights, entropy;  // [N] f32; undefined when not given
  std::int64_t step = 0, update_index = 0;
  const Call* call = nullptr;

  // Mean of `values` [N] over the unmasked tokens, as a metric that does not depend on the split of the batch.
  void metric(std::string_view name, const at::Tensor& values) const {
    const c10::NoGradGuard no_grad;
    const double count = mask.sum().item<double>();
    if (count > 0) call->metric(name, values.to(at::kDouble).masked_fill(~mask, 0).sum().item<double>(), count);
  }
  // Mean over each row's unmasked tokens [num_rows]; 0 for a row without any. values.index_select(0, row) spreads it.
  at::Tensor row_mean(const at::Tensor& values) const {
    const at::Tensor zeros = at::zeros({num_rows}, values.options());
    const at::Tensor counts = zeros.index_add(0, row, mask.to(values.scalar_type()));
    return zeros.index_add(0, row, values.masked_fill(~mask, 0)) / counts.clamp_min(1);
  }
};

// loss(x) returns the loss of every token, [N]. The SDK takes the gradient of sum(weight * loss) over unmasked tokens.
class TorchLoss : public Plugin {
 public:
  // How far a token's loss depends on others; `static constexpr coupling = MORTISE_COUPLING_...` in the derived class.
  static constexpr std::int32_t coupling = MORTISE_COUPLING_ROW;
  virtual at::Tensor loss(const LossIn& x) const = 0;
};

namespace detail {

// A view of the host's memory; undefined for null.
inline at::Tensor borrow(const mortise_tensor* t, at::ScalarType type) {
  if (t == nullptr) return {};
  const auto device =
      t->device_type == MORTISE_CUDA ? at::Device(at::kCUDA, c10::DeviceIndex(t->device_id)) : at::Device(at::kCPU);
  return at::from_blob(mortise_tensor_data(t), at::IntArrayRef(t->shape, std::size_t(t->ndim)),
                       at::TensorOptions().dtype(type).device(device));
}

inline at::Tensor row_index(const mortise_layout& layout, at::Device device) {
  const at::Tensor offsets =
      at::from_blob(const_cast<std::int64_t*>(layout.row_offsets), {layout.num_rows + 1}, at::dtype(at::kLong));
  return at::arange(layout.num_rows, at::kLong).repeat_interleave(offsets.diff(), 0, layout.num_tokens).to(device);
}

template <class T>
struct TorchLossPlugin {
  static LossIn inputs(const mortise_policy_loss_in& in, const Call& call) {
    LossIn x;
    x.mask = borrow(in.response_mask, at::kByte) != 0;
    const auto take = [&](const mortise_tensor* t) {
      return t == nullptr ? at::Tensor() : borrow(t, at::kFloat).masked_fill(~x.mask, 0);
    };
    x.log_prob = take(in.log_prob);
    x.old_log_prob = take(in.old_log_prob);
    x.advantages = take(in.advantages);
    x.weight = take(in.weight);
    x.ref_log_prob = take(in.ref_log_prob);
    x.rollout_log_prob = take(in.rollout_log_prob);
    x.rollout_is_weights = take(in.rollout_is_weights);
    x.entropy = take(in.entropy);
    x.row = row_index(*in.layout, x.mask.device());
    x.num_rows = in.layout->num_rows;
    x.step = in.step;
    x.update_index = in.update_index;
    x.call = &call;
    return x;
  }

  // d total / d leaf into `out`; an input that the loss does not use has gradient 0.
  static void write_gradient(const at::Tensor& total, const at::Tensor& leaf, const mortise_tensor* out, bool more) {
    const auto gradients = torch::autograd::grad({total}, {leaf}, {}, more, false, /*allow_unused=*/true);
    if (gradients[0].defined()) borrow(out, at::kFloat).copy_(gradients[0]);
  }

  static void compute_with_torch(const T& plugin, const Call& call, const mortise_policy_loss_in& in,
                                 mortise_policy_loss_out& out) {
    const c10::InferenceMode no_inference(false);
    const c10::AutoGradMode with_grad(true);
    LossIn x = inputs(in, call);
    const bool grad_log_prob = MORTISE_HAS(&out, grad_log_prob);
    const bool grad_entropy = MORTISE_HAS(&out, grad_entropy) && x.entropy.defined();
    if (grad_log_prob) x.log_prob.requires_grad_();
    if (grad_entropy) x.entropy.requires_grad_();
    const at::Tensor loss = plugin.loss(x);
    if (!loss.defined() || loss.sizes() != x.log_prob.sizes())
      fail(MORTISE_INTERNAL, "loss() must return one number per token, a tensor of the shape of log_prob");
    borrow(out.loss, at::kFloat).copy_(loss.detach().masked_fill(~x.mask, 0));
    if (!loss.requires_grad()) return;  // a constant: its gradient is 0, as the outputs are already
    const at::Tensor total = (x.weight * loss.masked_fill(~x.mask, 0)).sum();
    if (grad_log_prob) write_gradient(total, x.log_prob, out.grad_log_prob, grad_entropy);
    if (grad_entropy) write_gradient(total, x.entropy, out.grad_entropy, false);
  }

  static std::int32_t compute(void* self, mortise_call* raw, const mortise_policy_loss_in* in,
                              mortise_policy_loss_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](const T& plugin, Call call) {
      if (in->layout->num_tokens == 0) return;
      try {
        compute_with_torch(plugin, call, *in, *out);
      } catch (const c10::Error& e) {
        fail(MORTISE_INTERNAL, e.what_without_backtrace());
      }
    });
  }
  static constexpr mortise_policy_loss_vtable vtable = {
      sizeof(mortise_policy_loss_vtable), 0, create<T>, destroy<T>, get_extension<T>, compute};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_POLICY_LOSS, name, T::coupling, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_TORCH_LOSS(name, ...) MORTISE_PLUGIN(name, TorchLossPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_TORCH_HPP_
