// Gradients of the whole model: fast against plain layers, against finite differences, and the same for every packing.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "gradient_fixture.h"
#include "support/golden_models.h"

namespace mortise {
namespace {

std::vector<at::Tensor> take_gradients(Model& model) {
  std::vector<at::Tensor> out;
  for (NamedParameter& p : model.parameters()) {
    out.push_back(p.tensor.grad().defined() ? p.tensor.grad().clone()
                                            : at::zeros(p.tensor.sizes(), p.tensor.options().requires_grad(false)));
  }
  model.zero_grad();
  return out;
}

class EveryFamily : public testing::TestWithParam<std::pair<Family, bool>> {};

TEST_P(EveryFamily, FastEqualsPlain) {
  Fixture setup = make_setup(GetParam().first, GetParam().second);
  expect_fast_equals_plain(setup);
}

TEST_P(EveryFamily, GradientsEqualFiniteDifferences) {
  Fixture setup = make_setup(GetParam().first, GetParam().second);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  forward_backward(setup.model, batch, LayerPath::kFast);
  const auto gradients = take_gradients(setup.model);
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (size_t p = 0; p < gradients.size(); ++p) {
    at::Tensor tensor = setup.model.parameters()[p].tensor;
    double* data = tensor.mutable_data_ptr<double>();
    const at::Tensor gradient = gradients[p].contiguous();
    // A few elements of each parameter, spread out; the embedding's rows that occur are among them.
    for (int64_t i = 0; i < tensor.numel(); i += std::max<int64_t>(1, tensor.numel() / 5)) {
      const double kept = data[i];
      data[i] = kept + kStep;
      const double above = forward_backward(setup.model, batch, LayerPath::kFast, false).value;
      data[i] = kept - kStep;
      const double below = forward_backward(setup.model, batch, LayerPath::kFast, false).value;
      data[i] = kept;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient.const_data_ptr<double>()[i], numeric, 1e-6 * std::max(1.0, std::abs(numeric)))
          << setup.model.parameters()[p].name << "[" << i << "]";
    }
  }
}

TEST_P(EveryFamily, SharingThePromptChangesNothing) {
  Fixture setup = make_setup(GetParam().first, GetParam().second);
  const PackedBatch shared = *pack_rows(setup.rows(), {.vocab_size = 23});
  const PackedBatch apart = *pack_rows(setup.rows(), {.share_prefix = false, .vocab_size = 23});
  ASSERT_LT(shared.num_tokens(), apart.num_tokens());
  const Loss a = forward_backward(setup.model, shared, LayerPath::kFast);
  const auto a_gradients = take_gradients(setup.model);
  const Loss b = forward_backward(setup.model, apart, LayerPath::kFast);
  const auto b_gradients = take_gradients(setup.model);
  EXPECT_CLOSE(a.log_prob, b.log_prob, 1e-11);
  for (size_t i = 0; i < a_gradients.size(); ++i) {
    EXPECT_LT(relative_l2(a_gradients[i], b_gradients[i]), 1e-11) << setup.model.parameters()[i].name;
  }
}

TEST_P(EveryFamily, RowsOneByOneGiveTheSame) {
  Fixture setup = make_setup(GetParam().first, GetParam().second);
  const PackedBatch packed = *pack_rows(setup.rows(), {.vocab_size = 23});
  const Loss whole = forward_backward(setup.model, packed, LayerPath::kFast);
  const auto whole_gradients = take_gradients(setup.model);
  double sum = 0.0;
  int64_t first = 0;
  for (const PackRow& row : setup.rows()) {
    const PackedBatch one = *pack_rows(std::span(&row, 1), {.vocab_size = 23});
    const Loss loss = forward_backward(setup.model, one, LayerPath::kFast, true, first);
    EXPECT_CLOSE(loss.log_prob, whole.log_prob.narrow(0, first, one.num_targets()), 1e-11);
    sum += loss.value;
    first += one.num_targets();
  }
  const auto summed = take_gradients(setup.model);
  EXPECT_NEAR(sum, whole.value, 1e-10);
  for (size_t i = 0; i < summed.size(); ++i) {
    EXPECT_LT(relative_l2(summed[i], whole_gradients[i]), 1e-11) << setup.model.parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamily,
                         testing::Values(std::pair{Family::kQwen2, false}, std::pair{Family::kQwen2, true},
                                         std::pair{Family::kQwen3, false}, std::pair{Family::kLlama, false},
                                         std::pair{Family::kMistral, false}, std::pair{Family::kGemma2, true},
                                         std::pair{Family::kGemma3, false}, std::pair{Family::kPhi3, false},
                                         std::pair{Family::kQwen2Moe, false}, std::pair{Family::kQwen3Moe, true},
                                         std::pair{Family::kMixtral, false}, std::pair{Family::kGptOss, false}));

// Whatever a family's config.json switches on.
TEST(Gradients, EveryFoldersFastLayersEqualThePlainOnes) {
  const std::vector<std::string> names = test::golden_models("config.json");
  ASSERT_GE(names.size(), 24U);
  for (const std::string& name : names) {
    ModelConfig config = *read_model_config(default_env(), test::golden_model(name));
    if (config.is_classifier) continue;
    config.initializer_range = 0.1;
    config.rope_length = 12;  // for rows of all lengths
    Model model = *Model::random(config, 7, "float64");
    const Fixture rows = make_setup(Family::kQwen2, false);
    const PackedBatch batch = *pack_rows(rows.rows(), {.vocab_size = config.vocab_size});
    const Loss fast = forward_backward(model, batch, LayerPath::kFast);
    const auto fast_gradients = take_gradients(model);
    const Loss plain = forward_backward(model, batch, LayerPath::kPlain);
    const auto plain_gradients = take_gradients(model);
    EXPECT_CLOSE(fast.log_prob, plain.log_prob, 1e-10) << name;
    for (size_t i = 0; i < fast_gradients.size(); ++i)
      EXPECT_LT(relative_l2(fast_gradients[i], plain_gradients[i]), 1e-9) << name << ": " << model.parameters()[i].name;
  }
}

TEST(Gradients, Float32IsCloseToFloat64) {
  Fixture exact = make_setup(Family::kQwen2, true);
  Fixture single = make_setup(Family::kQwen2, true, "float32");
  const PackedBatch batch = *pack_rows(exact.rows(), {.vocab_size = 23});
  forward_backward(exact.model, batch, LayerPath::kFast);
  forward_backward(single.model, batch, LayerPath::kFast);
  const auto want = take_gradients(exact.model);
  const auto got = take_gradients(single.model);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(relative_l2(got[i], want[i]), 1e-5) << exact.model.parameters()[i].name;
  }
}

TEST(Gradients, GradientsAddUpOverMicroBatchesAndFrozenModelsHaveNone) {
  Fixture setup = make_setup(Family::kQwen2, false);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  forward_backward(setup.model, batch, LayerPath::kFast);
  forward_backward(setup.model, batch, LayerPath::kFast);
  const auto twice = take_gradients(setup.model);
  forward_backward(setup.model, batch, LayerPath::kFast);
  const auto once = take_gradients(setup.model);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_LT(relative_l2(twice[i], once[i] * 2.0), 1e-12);

  Model frozen = setup.model.clone_frozen();
  EXPECT_FALSE(frozen.forward_hidden(batch).requires_grad());
  EXPECT_CLOSE(frozen.forward_hidden(batch), setup.model.forward_hidden(batch), 0.0);
  const at::NoGradGuard no_grad;
  setup.model.parameters()[0].tensor.add_(1.0);
  EXPECT_GT(max_difference(frozen.parameters()[0].tensor, setup.model.parameters()[0].tensor), 0.5);
}

TEST(Gradients, UpdatesInPlaceReachTheFusedWeights) {
  Fixture setup = make_setup(Family::kQwen2, false);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const at::NoGradGuard no_grad;
  const at::Tensor before = setup.model.forward_hidden(batch);
  const NamedParameter* k = setup.model.find_parameter("model.layers.1.self_attn.k_proj.weight");
  ASSERT_NE(k, nullptr);
  at::Tensor tensor = k->tensor;
  tensor.mul_(1.5);
  const LayerWeights& layer = setup.model.weights().layers[1];
  EXPECT_CLOSE(layer.qkv_weight_QH.narrow(0, 16, 8), tensor, 0.0);
  EXPECT_GT(max_difference(before, setup.model.forward_hidden(batch)), 1e-6);
}

TEST(Gradients, ThePrefillCallbackSeesRotatedRowsOnBothPaths) {
  Fixture setup = make_setup(Family::kQwen3, false);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> seen[2];
  for (const LayerPath path : {LayerPath::kFast, LayerPath::kPlain}) {
    auto& list = seen[path == LayerPath::kFast ? 0 : 1];
    const auto keep = [&](int64_t layer, const at::Tensor& qkv) {
      EXPECT_EQ(layer, static_cast<int64_t>(list.size()));
      list.push_back(qkv.clone());
    };
    EXPECT_EQ(setup.model.forward_hidden(batch, {path, keep}).size(1), 16);
  }
  ASSERT_EQ(seen[0].size(), 2U);
  ASSERT_EQ(seen[1].size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_CLOSE(seen[0][i], seen[1][i], 1e-11);
}

}  // namespace
}  // namespace mortise
