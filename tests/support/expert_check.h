// A mixture of experts by the kernels of core/cuda against libtorch's operators in float64: for the emulator with small sizes,
// and for a GPU with larger ones.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/layers/experts.h"
#include "model/layers/kernel_experts.h"

namespace mortise::test {

struct ExpertSizes {
  int64_t hidden, size, num_experts, each;
};

// Numbers between -scale and scale without an order that products would show.
inline at::Tensor scattered(at::IntArrayRef sizes, double step, double scale) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const at::Tensor places = at::arange(count, at::kDouble);
  return (at::sin(places * places * step) * scale).reshape(sizes);
}

// Both forms of matrices, and both formats of numbers.
inline void expect_kernels_compute_experts(const c10::Device& device, const ExpertSizes& s, int64_t num_tokens) {
  const at::NoGradGuard no_grad;
  for (const bool is_stacked : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::to_string(num_tokens) + " tokens" + (is_stacked ? ", stacked, " : ", ") + c10::toString(dtype));
      ModelConfig config;
      config.hidden_size = s.hidden;
      config.moe = {.num_experts = s.num_experts, .experts_per_token = s.each, .expert_size = s.size, .is_dense = {}};
      config.moe.is_gpt_oss = config.moe.normalizes = is_stacked;
      const auto rounded = [&](const at::Tensor& x) { return x.to(dtype).to(at::kDouble); };
      const double scale = 1.7 / std::sqrt(static_cast<double>(s.hidden));
      const int64_t h = s.hidden, i = s.size, e = s.num_experts;
      const at::Tensor x = rounded(scattered({num_tokens, h}, 0.0123, 1.0));
      const at::Tensor gate_up =
          rounded(is_stacked ? scattered({e, h, 2 * i}, 0.0271, scale) : scattered({e, 2 * i, h}, 0.0271, scale));
      const at::Tensor down =
          rounded(is_stacked ? scattered({e, i, h}, 0.0333, scale) : scattered({e, h, i}, 0.0333, scale));
      ExpertLeaves leaves;
      if (is_stacked) {
        leaves.gate_up_bias = scattered({e, 2 * i}, 0.7, 0.3);
        leaves.down_bias = scattered({e, h}, 0.9, 0.3);
      }
      leaves.gate_up = is_stacked ? std::vector<at::Tensor>{gate_up} : gate_up.unbind(0);
      leaves.down = is_stacked ? std::vector<at::Tensor>{down} : down.unbind(0);
      const at::Tensor logits = scattered({num_tokens, e}, 0.417, 2.0).to(at::kFloat);
      const Routing chosen = route(logits, config.moe, 0, nullptr);
      const LayerMatrices exact{{}, {}, {}, {}, gate_up, down};
      const at::Tensor want =
          mixture_operators(x, {chosen.experts_NK, chosen.weights_NK.to(at::kDouble)}, exact, leaves, config);
      const auto there = [&](const at::Tensor& numbers, at::ScalarType as) {
        return numbers.defined() ? numbers.to(as).to(device) : numbers;
      };
      leaves.gate_up_bias = there(leaves.gate_up_bias, at::kFloat);
      leaves.down_bias = there(leaves.down_bias, at::kFloat);
      const Routing routing = kernel_route(there(logits, at::kFloat), config.moe);
      EXPECT_TRUE(routing.experts_NK.cpu().equal(chosen.experts_NK));
      const LayerMatrices matrices{{}, {}, {}, {}, there(gate_up, dtype), there(down, dtype)};
      const at::Tensor got = kernel_mixture(there(x, at::kFloat), routing, matrices, leaves, config);
      const double apart = at::linalg_vector_norm(got.cpu().to(at::kDouble) - want).item<double>() /
                           at::linalg_vector_norm(want).item<double>();
      EXPECT_LT(apart, dtype == at::kFloat ? 2e-6 : 4e-3);  // in bfloat16 the gate's result is rounded
      EXPECT_GT(apart, dtype == at::kFloat ? 0.0 : 1e-4);
    }
  }
}

}  // namespace mortise::test
