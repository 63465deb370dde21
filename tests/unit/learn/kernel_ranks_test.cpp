// Ranks that share the tokens of a pass, or the layers, learn with the kernels of core/cuda what one rank learns: norms of
// heads lie behind the exchange of heads, and parts of a layer read float32.
#include "layer_variants.h"
#include "support/started_kernels.h"

namespace mortise {
namespace {

TEST(TrainingKernelsOnRanks, GiveTheNumbersOfOneRank) {
  const test::TrainingKernels kernels;
  Variant variant{"norms of heads", small_config(kShape.vocab, 2)};
  variant.config.qk_norm = true;
  const Mesh alone_there{.device = &kAsDevice};
  for (const char* dtype : {"float32", "bfloat16"}) {
    const double tolerance = dtype == std::string("float32") ? 2e-5 : 2e-2;
    const Update expected = update_of(variant, alone(), alone_there, 1, dtype);
    ASSERT_GT(expected.gradients.size(), 0U);
    for (const Mesh& mesh : {Mesh{.num_ranks = 2, .sequence_size = 2, .device = &kAsDevice},
                             Mesh{.num_ranks = 2, .tensor_size = 2, .device = &kAsDevice}}) {
      const int64_t before = test::TrainingKernels::calls<&mortise_cuda_rotate_heads_backward>();
      test::on_ranks(2, [&](Communicator& communicator) {
        SCOPED_TRACE(std::string(dtype) + ", " + name_of(mesh));  // a thread has its own
        const Update got = update_of(variant, communicator, mesh, 1, dtype);
        EXPECT_NEAR(got.report.sums.loss, expected.report.sums.loss, tolerance);
        EXPECT_NEAR(got.report.grad_norm, expected.report.grad_norm, tolerance * expected.report.grad_norm);
        ASSERT_EQ(got.gradients.size(), expected.gradients.size());
        size_t num_whole = 0;
        for (size_t i = 0; i < got.gradients.size(); ++i) {
          if (got.gradients[i].sizes() != expected.gradients[i].sizes()) continue;  // a part of a layer's matrix
          const double scale = 1e-3 + expected.gradients[i].norm().item<double>();
          EXPECT_LE((got.gradients[i] - expected.gradients[i]).norm().item<double>(), tolerance * scale) << i;
          ++num_whole;
        }
        EXPECT_GE(num_whole, mesh.tensor_size > 1 ? 9U : got.gradients.size()) << "four norms in each of two layers";
      });
      EXPECT_GT(test::TrainingKernels::calls<&mortise_cuda_rotate_heads_backward>(), before);
    }
  }
}

}  // namespace
}  // namespace mortise
