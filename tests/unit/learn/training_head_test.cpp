// The head's passes by the kernels of core/cuda, which the emulator runs: against float64, for heads that round and others.
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>

#include <optional>
#include <string>

#include "model/head/kept_logits.h"
#include "support/started_kernels.h"
#include "unit/learn/head_inputs.h"

namespace mortise {
namespace {

// Heads of several blocks of the vocabulary, with caps; in chunks of 64 tokens and in one.
TEST(TrainingKernels, TheHeadEqualsFloat64ForAnyChunks) {
  for (const HeadCase& one : {HeadCase{5, 8, 23, 0.0}, HeadCase{70, 3, 16390, 0.0}, HeadCase{65, 4, 300, 3.0}}) {
    const HeadInputs inputs(one);
    const HeadNumbers want = inputs.in_float64();
    for (const bool in_one_pass : {true, false}) {
      for (const int64_t chunk_bytes : {int64_t{1}, int64_t{56} << 20}) {
        SCOPED_TRACE(std::to_string(one.vocab) + (in_one_pass ? ", one pass, " : ", two passes, ") +
                     std::to_string(chunk_bytes));
        const test::TrainingKernels kernels;
        const int64_t before = test::TrainingKernels::head_chunks();
        expect_close(inputs.by_device(at::kCPU, in_one_pass, chunk_bytes), want, 2e-5);
        EXPECT_GT(test::TrainingKernels::head_chunks(), before);
      }
    }
  }
}

// With kernels and without: log-probs and entropies are those of float64 products of the rounded matrices.
TEST(TrainingKernels, AHeadThatRoundsHasFloat32Logits) {
  for (const HeadCase& one : {HeadCase{70, 16, 16390, 0.0}, HeadCase{65, 24, 300, 3.0}}) {
    HeadInputs inputs(one);
    inputs.rounds = true;
    const HeadNumbers want = inputs.in_float64_rounded();
    for (const bool has_kernels : {true, false}) {
      std::optional<test::TrainingKernels> kernels;
      if (has_kernels) kernels.emplace();
      for (const bool in_one_pass : {true, false}) {
        SCOPED_TRACE(std::to_string(one.vocab) + (in_one_pass ? ", one pass" : ", two passes") +
                     (has_kernels ? ", kernels" : ""));
        expect_close_but_for_rounding(inputs.by_device(at::kCPU, in_one_pass, 1), want);
      }
    }
  }
}

// What torch computes under autocast, and so verl: bfloat16 logits, whose gradients and those of the weight are bfloat16 too.
HeadNumbers by_bfloat16_logits(const HeadInputs& inputs) {
  const at::Tensor h = inputs.hidden.to(at::kBFloat16).requires_grad_(true);
  const at::Tensor w = inputs.weight.to(at::kBFloat16).requires_grad_(true);
  const at::Tensor log_p = at::log_softmax(at::matmul(h, w.t()).to(at::kFloat) / HeadInputs::kTemperature, -1);
  const at::Tensor log_prob = log_p.gather(1, inputs.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(log_p.exp() * log_p).sum(-1);
  ((log_prob * inputs.grad).sum() + (entropy * inputs.grad_entropy).sum()).backward();
  return {log_prob.detach().to(at::kDouble), entropy.detach().to(at::kDouble), h.grad(), w.grad()};
}

TEST(TrainingKernels, AHeadThatRoundsIsMoreExactThanBfloat16Logits) {
  HeadInputs inputs({128, 64, 2000, 0.0});
  inputs.rounds = true;
  const HeadNumbers exact = inputs.in_float64(), torch = by_bfloat16_logits(inputs);
  const test::TrainingKernels kernels;
  const HeadNumbers own = inputs.by_device(at::kCPU, true, 1);
  for (const auto part :
       {&HeadNumbers::log_prob, &HeadNumbers::entropy, &HeadNumbers::d_hidden, &HeadNumbers::d_weight})
    EXPECT_LT(relative_l2(own.*part, exact.*part), 0.95 * relative_l2(torch.*part, exact.*part));
}

// What a dry run says that a pass keeps of its logits.
TEST(TrainingKernels, KeptLogitsAreBounded) {
  EXPECT_EQ(kept_logit_bytes(70, 300), 70 * 300 * 4);
  EXPECT_LE(kept_logit_bytes(int64_t{1} << 20, 151936), int64_t{512} << 20);
  EXPECT_GT(kept_logit_bytes(int64_t{1} << 20, 151936), int64_t{256} << 20);
  EXPECT_EQ(rounded_head_bytes(70, 3, 300), 2 * (300 * 3 + 70 * 3 + 70 * 300));
  EXPECT_EQ(rounded_head_bytes(70, 3, 20000), 2 * (20000 * 3 + 70 * 3 + 70 * 16384)) << "gradients of one block";
  EXPECT_EQ(kept_logit_bytes(int64_t{1} << 20, int64_t{1} << 22), 64 * (int64_t{1} << 24)) << "no chunk is smaller";
}

}  // namespace
}  // namespace mortise
