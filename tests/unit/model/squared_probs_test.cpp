// Sums of squared probabilities against a softmax over all logits at once.
#include "model/head/squared_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include "torch_helpers.h"

namespace mortise {
namespace {

TEST(SquaredProbs, AreThoseOfTheSoftmax) {
  for (const int64_t rows : {1, 37}) {
    const at::Tensor hidden = at::rand({rows, 8}, at::kDouble) - 0.5,
                     weight = (at::rand({70'000, 8}, at::kDouble) - 0.5) * 30.0;
    for (const double softcap : {0.0, 5.0}) {
      const VocabularyHead head(weight, softcap);
      const at::Tensor expected = (head_logits(hidden, head) / 0.7).softmax(-1).square().sum(-1);
      const at::Tensor got = head_sum_pi_squared(hidden, head, 0.7);
      EXPECT_LE((got - expected).abs().max().item<double>(), 1e-11 * expected.abs().max().item<double>());
    }
  }
  EXPECT_EQ(head_sum_pi_squared(at::rand({0, 8}), VocabularyHead(at::rand({9, 8})), 1.0).numel(), 0);
}

// 35 blocks of columns, of which each adds as much. Their sums are rounded when the last one is there.
TEST(SquaredProbs, BlocksOfFloat32AreAddedInDouble) {
  const at::Tensor hidden = random_tensor({16, 8}, 1, at::kFloat, 0.3),
                   weight = random_tensor({70'000, 8}, 2, at::kFloat, 3.5);
  const at::Tensor expected = head_sum_pi_squared(hidden.to(at::kDouble), weight.to(at::kDouble), 0.7);
  const at::Tensor got = head_sum_pi_squared(hidden, weight, 0.7);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LE(((got.to(at::kDouble) - expected) / expected).abs().max().item<double>(), 3e-6);
}

}  // namespace
}  // namespace mortise
