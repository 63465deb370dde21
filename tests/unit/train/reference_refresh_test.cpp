// ref = (1 - alpha) ref + alpha policy, for every parameter.
#include "train/loop/reference_refresh.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "tiny_model.h"

namespace mortise {
namespace {

TEST(ReferenceRefresh, MovesEveryParameterByItsShare) {
  const Model policy = tiny_model(1), before = tiny_model(2);
  for (const double alpha : {0.0, 0.25, 0.6, 1.0}) {
    Model reference = before.clone_frozen();
    refresh_reference(policy, reference, alpha);
    ASSERT_FALSE(reference.parameters().empty());
    for (size_t i = 0; i < reference.parameters().size(); ++i) {
      const at::Tensor now = reference.parameters()[i].tensor;
      const at::Tensor expected =
          (1.0 - alpha) * before.parameters()[i].tensor.detach() + alpha * policy.parameters()[i].tensor.detach();
      EXPECT_LT((now - expected).abs().max().item<double>(), 1e-15) << policy.parameters()[i].name << " " << alpha;
      EXPECT_FALSE(now.requires_grad());
    }
  }
}

}  // namespace
}  // namespace mortise
