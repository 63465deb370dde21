// Passes of a model with bfloat16 matrices that read what the engine has kept, against passes that compute it. Both round the
// same numbers, but for those that a last bit of a float32 sum rounds the other way.
#include <ATen/core/grad_mode.h>

#include "support/golden_models.h"
#include "unit/generate/sampled_rows.h"

namespace mortise {
namespace {

// Rounding to bfloat16 moves the gradient away from that of a float32 model. A last bit may turn a rounding over, and all
// that follows then rounds other numbers. So the distance of the two passes has no small bound, but both have the same
// distance from float32.
void expect_as_exact(Model& model, Model& exact, const std::string& where) {
  for (const bool same_length : {false, true}) {
    const Rows rows = sample(model, requests_of(model.config(), same_length));
    for (const auto& [ids, shares] : kCuts) {
      const PackedBatch packed = pack(rows, ids, shares);
      if (packed.num_targets() == 0) continue;
      ForwardOptions options;
      const PassResult whole = run_pass(model, packed, options), unrounded = run_pass(exact, packed, options);
      options.sampled = pass_of(model, packed, ids);
      ASSERT_NE(options.sampled, nullptr);
      const PassResult got = run_pass(model, packed, options);
      const double rounding = distance_of_all(whole, unrounded);
      EXPECT_GT(rounding, 5e-3) << where;
      EXPECT_LT(distance_of_all(got, unrounded), 1.1 * rounding) << where << " " << ids.size();
      EXPECT_LT(distance_of_all(got, whole), 0.6 * rounding) << where << " " << ids.size();
      EXPECT_LT(distance(got.hidden, whole.hidden), 0.6 * distance(whole.hidden, unrounded.hidden)) << where;
    }
  }
}

class SampledBfloat16 : public testing::TestWithParam<const char*> {};

TEST_P(SampledBfloat16, GradientsAreThoseOfACompletePass) {
  const auto folder = test::golden_model(GetParam());
  auto model = Model::load(default_env(), folder, "bfloat16"), exact = Model::load(default_env(), folder);
  ASSERT_TRUE(model.ok() && exact.ok());
  expect_as_exact(*model, *exact, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Models, SampledBfloat16,
                         testing::Values("qwen2_tied", "qwen3_untied_v5", "llama_bias", "mistral_sliding", "phi3"),
                         [](const auto& test) { return std::string(test.param); });

// The reference implementation rounds in the same places, too, and adds in an order of its own: the complete pass is nearer
// to what sampling has computed than to it.
TEST(SampledBfloat16Layers, AreNearerThanTheReference) {
  Model model = wide_model("bfloat16"), exact = wide_model();
  expect_as_exact(model, exact, "wide");
  const Rows rows = sample(model, requests_of(model.config(), true));
  const PackedBatch packed = pack(rows, all_ids());
  ForwardOptions options, plain;
  plain.path = LayerPath::kPlain;
  const PassResult whole = run_pass(model, packed, options), reference = run_pass(model, packed, plain);
  options.sampled = pass_of(model, packed, all_ids());
  ASSERT_NE(options.sampled, nullptr);
  const PassResult got = run_pass(model, packed, options);
  EXPECT_LT(distance(got.hidden, whole.hidden), distance(reference.hidden, whole.hidden));
  EXPECT_LT(distance_of_all(got, whole), distance_of_all(reference, whole));
}

// Cuts of the same rows read the same numbers. Their sums differ by a small part of what rounding changes, a fifth at most.
TEST(SampledBfloat16Layers, GradientsDoNotDependOnTheCut) {
  Model model = wide_model("bfloat16"), exact = wide_model();
  const Rows rows = sample(model, requests_of(model.config(), false));
  const PassResult whole = gradient_of_cuts(model, rows, {all_ids()});
  const double rounding = distance_of_all(whole, gradient_of_cuts(exact, rows, {all_ids()}, /*reads_sampled=*/false));
  EXPECT_GT(rounding, 5e-3);
  const std::vector<std::vector<int64_t>> groups{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}, {12, 13, 14}},
      mixed{{0, 14, 7}, {1, 2, 3, 4}, {5, 6, 8, 9}, {10, 11, 12, 13}};
  EXPECT_LT(distance_of_all(gradient_of_cuts(model, rows, groups), whole), 0.2 * rounding);
  EXPECT_LT(distance_of_all(gradient_of_cuts(model, rows, mixed), whole), 0.2 * rounding);
}

}  // namespace
}  // namespace mortise
