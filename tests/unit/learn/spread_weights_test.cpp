// Weights that are spread over ranks (ZeRO 3): updates of every kind of model and adapter give the numbers of one rank, in
// bfloat16 the same bits with and without master weights; what a rank keeps in memory and in files; a reference that
// follows an adapter. Losses of every coupling with every stage are in ranks_test.cpp, split layers in
// tensor_parallel_test.cpp.
#include <gtest/gtest.h>

#include "layer_variants.h"
#include "model/tensor/storage_memory.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::on_ranks;

constexpr Mesh kTwo{.num_ranks = 2, .zero_stage = 3}, kThree{.num_ranks = 3, .zero_stage = 3};

// The second update reads what the first one has changed.
TEST(SpreadWeights, EveryKindOfLayerAndAdapterGivesTheNumbersOfOneRank) {
  size_t index = 0;
  for (const Variant& variant : variants()) {
    const Update expected = update_of(variant, alone(), {}, 2);
    const Mesh mesh = index++ % 2 == 0 ? kThree : kTwo;
    SCOPED_TRACE(variant.name + ", " + name_of(mesh));
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      const Update got = update_of(variant, communicator, mesh, 2);
      expect_same_reports(got.report, expected.report, 1e-10);
      expect_same_weights(got, expected);
    });
  }
}

// A rank rounds the numbers that it has, before they travel or after merged matrices were computed from them.
TEST(SpreadWeights, DeterministicBfloat16UpdatesAreEqualToTheBit) {
  size_t index = 0;
  for (const Variant& variant : variants()) {
    LearnerOptions options;
    if (variant.options) variant.options(options);
    const bool is_plain = options.pass.path == LayerPath::kPlain;
    if (is_plain && variant.has_adapter()) continue;  // refused
    if (options.teacher_loss.teacher != nullptr) continue;  // in float64
    const Update expected = update_of(variant, alone(), {}, 2, "bfloat16");
    const Mesh mesh = index++ % 2 == 0 ? kTwo : kThree;
    SCOPED_TRACE(variant.name + ", " + name_of(mesh));
    on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
      const Update got = update_of(variant, communicator, mesh, 2, "bfloat16");
      expect_same_reports(got.report, expected.report, 0.0);
      for (size_t i = 0; i < got.weights.size(); ++i) EXPECT_TRUE(got.weights[i].equal(expected.weights[i])) << i;
    });
  }
}

}  // namespace
}  // namespace mortise
