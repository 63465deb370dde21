// Stands in for cuDNN on CPU tensors: the plain attention, in bfloat16 like cuDNN's. Counts its calls, and has its faults.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "model/layers/cudnn_attention.h"

namespace mortise::test {

class PlainCudnn final : public CudnnAttention {
 public:
  std::string fails = {};    // not empty: each call throws it
  double factor = 1.0;       // multiplies the results
  bool is_unsteady = false;  // results change from call to call
  int64_t window_error = 0;  // keys that a window holds too many
  int num_forwards = 0, num_backwards = 0;
  AttentionShape last_shape = {};

  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const SegmentLengths& lengths, const AttentionShape& shape) override {
    if (!fails.empty()) throw std::runtime_error(fails);
    last_shape = shape;
    ++num_forwards;
    const at::NoGradGuard no_grad;
    const double changes = is_unsteady ? 1.0 + 0.01 * num_forwards : 1.0;
    const at::Tensor out = plain(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), lengths, shape);
    return {(out * (factor * changes)).to(at::kBFloat16), at::zeros({q.size(0), q.size(1)}, at::kFloat)};
  }

  std::array<at::Tensor, 3> backward(const std::array<at::Tensor, 3>& qkv, const at::Tensor&, const at::Tensor&,
                                     const at::Tensor& d_out, const SegmentLengths& lengths,
                                     const AttentionShape& shape) override {
    ++num_backwards;
    const at::AutoGradMode records(true);
    std::array<at::Tensor, 3> inputs;
    for (size_t i = 0; i < 3; ++i) inputs[i] = qkv[i].detach().to(at::kFloat).set_requires_grad(true);
    plain(inputs[0], inputs[1], inputs[2], lengths, shape).backward(d_out.to(at::kFloat));
    std::array<at::Tensor, 3> out;
    for (size_t i = 0; i < 3; ++i) out[i] = inputs[i].grad().to(at::kBFloat16);
    return out;
  }

  std::string why_not(const CudnnSizes&, const std::string&, int) override { return fails; }

 private:
  [[nodiscard]] at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const SegmentLengths& lengths, AttentionShape shape) const {
    shape.rounds = false;
    if (shape.window > 0) shape.window += window_error;
    return segment_attention(q, k, v, lengths, shape);
  }
};

}  // namespace mortise::test
