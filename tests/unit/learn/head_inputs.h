// Inputs of a head on a device, its numbers by float64 and by the device's passes, and how they are compared.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "model/device/compute_device.h"
#include "model/head/log_prob_head.h"
#include "unit/model/torch_helpers.h"

namespace mortise {

struct HeadCase {
  int64_t tokens, width, vocab;
  double softcap;
};

// Log-prob, entropy and their gradients by one of the two passes.
struct HeadNumbers {
  at::Tensor log_prob, entropy, d_hidden, d_weight;
};

struct HeadInputs {
  at::Tensor hidden, weight, targets, grad, grad_entropy;
  double softcap;
  bool rounds = false;

  explicit HeadInputs(const HeadCase& c)
      : hidden(random_tensor({c.tokens, c.width}, 1, at::kFloat)),
        weight(random_tensor({c.vocab, c.width}, 2, at::kFloat)),
        targets(at::zeros({c.tokens}, at::kLong)),
        grad(random_tensor({c.tokens}, 3)),
        grad_entropy(random_tensor({c.tokens}, 4)),
        softcap(c.softcap) {
    for (int64_t i = 0; i < c.tokens; ++i)  // they fall into all blocks, and on the last column
      targets.mutable_data_ptr<int64_t>()[i] = i == 0 ? c.vocab - 1 : i * 7919 % c.vocab;
  }

  [[nodiscard]] HeadNumbers in_float64() const {
    const at::Tensor h = hidden.to(at::kDouble).requires_grad_(true), w = weight.to(at::kDouble).requires_grad_(true);
    const LogProbs out = head_log_prob_plain(h, {w, softcap}, targets, kTemperature);
    ((out.log_prob_R * grad).sum() + (out.entropy_R * grad_entropy).sum()).backward();
    return {out.log_prob_R.detach(), out.entropy_R.detach(), h.grad(), w.grad()};
  }

  // The same of what a head that rounds multiplies: its sums differ by the rounded gradients of logits alone.
  [[nodiscard]] HeadNumbers in_float64_rounded() const {
    HeadInputs rounded = *this;
    rounded.hidden = hidden.to(at::kBFloat16).to(at::kFloat);
    rounded.weight = weight.to(at::kBFloat16).to(at::kFloat);
    return rounded.in_float64();
  }

  // The gradient is added to that of the weight.
  [[nodiscard]] HeadNumbers by_device(const c10::Device& device, bool in_one_pass, int64_t chunk_bytes) const {
    const at::Tensor h = hidden.to(device), w = weight.to(device);
    HeadNumbers out{{}, {}, at::empty_like(h), weight.clone().to(device)};
    VocabularyHead head{w, softcap};
    head.by_operators = true;
    head.rounds = rounds;
    const HeadOptions options{.chunk_bytes = chunk_bytes};
    if (in_one_pass) {
      one_pass(h, head, options, out);
    } else {
      const LogProbs first = head_log_prob(h, head, targets, kTemperature, true, options);
      out.log_prob = first.log_prob_R.to(at::kDouble);
      out.entropy = first.entropy_R.to(at::kDouble);
      head_backward(h, head, targets, kTemperature, grad, grad_entropy, out.d_hidden, out.d_weight, first.norms_R,
                    options);
    }
    out.d_hidden = on_host(out.d_hidden);
    out.d_weight = on_host(out.d_weight) - weight;
    return out;
  }

  void one_pass(const at::Tensor& h, const VocabularyHead& head, const HeadOptions& options, HeadNumbers& out) const {
    out.log_prob = at::zeros({h.size(0)}, at::kDouble);
    out.entropy = at::zeros({h.size(0)}, at::kDouble);
    const auto on_chunk = [&](const HeadChunk& chunk) {
      for (int64_t t = chunk.begin; t < chunk.end; ++t) {
        const auto i = static_cast<size_t>(t - chunk.begin);
        out.log_prob.mutable_data_ptr<double>()[t] = chunk.log_prob[i];
        out.entropy.mutable_data_ptr<double>()[t] = chunk.entropy[i];
        chunk.grad_log_prob[i] = grad.const_data_ptr<double>()[t];
        chunk.grad_entropy[i] = grad_entropy.const_data_ptr<double>()[t];
      }
    };
    head_one_pass(h, head, targets, kTemperature, EntropyUse::kGradient, on_chunk, out.d_hidden, out.d_weight, options);
  }

  static constexpr double kTemperature = 0.8;
};

inline void expect_close(const HeadNumbers& got, const HeadNumbers& want, double tolerance) {
  EXPECT_CLOSE(got.log_prob, want.log_prob, tolerance);
  EXPECT_CLOSE(got.entropy, want.entropy, tolerance);
  EXPECT_LT(relative_l2(got.d_hidden, want.d_hidden), tolerance);
  EXPECT_LT(relative_l2(got.d_weight, want.d_weight), tolerance);
}

// A gradient of logits is rounded by up to 2^-9 of itself, nothing else behind the inputs is.
inline void expect_close_but_for_rounding(const HeadNumbers& got, const HeadNumbers& want) {
  EXPECT_CLOSE(got.log_prob, want.log_prob, 2e-5);
  EXPECT_CLOSE(got.entropy, want.entropy, 2e-5);
  for (const auto& [own, exact] : {std::pair{got.d_hidden, want.d_hidden}, {got.d_weight, want.d_weight}}) {
    EXPECT_LT(relative_l2(own, exact), 3e-3);
    EXPECT_GT(relative_l2(own, exact), 1e-4) << "it was rounded";
  }
}

}  // namespace mortise
