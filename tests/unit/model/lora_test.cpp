// Adapters in training: gradients, frozen weights, the reference's weights, and PEFT's folder form.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <filesystem>

#include "foundation/formats/json.h"
#include "gradient_fixture.h"
#include "model/adapters/trained_lora.h"
#include "model/layers/expert_lora.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

Path scratch_adapter(const std::string& name) {
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / "lora_test" / name;
  fs::remove_all(folder);
  return folder;
}

Path golden_folder(const std::string& name) { return Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name; }

class Adapted : public testing::TestWithParam<std::pair<Family, bool>> {};

// The fast layers compute with the merged weights, the plain ones with base and adapter apart, as PEFT does.
TEST_P(Adapted, FastEqualsPlain) {
  Fixture setup = make_setup(GetParam().first, GetParam().second);
  start_adapter(setup.model, {.rank = 3, .alpha = 6.0});
  expect_fast_equals_plain(setup);
}

INSTANTIATE_TEST_SUITE_P(Families, Adapted,
                         testing::Values(std::pair{Family::kQwen2, true}, std::pair{Family::kLlama, false},
                                         std::pair{Family::kGemma3, false}, std::pair{Family::kPhi3, false},
                                         std::pair{Family::kGptOss, false}));

// Some experts are merged in threads that record graphs, as all threads do that nobody tells otherwise.
TEST(Lora, ExpertsAreMergedWithoutAGraphInAnyThread) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor base = at::arange(64 * 5 * 4, options).view({64, 5, 4}).div(100.0).requires_grad_(true);
  const at::Tensor out = at::zeros({64, 5, 4}, options).requires_grad_(true);
  LoraMatrix lora;
  lora.a_RI = at::arange(64 * 2 * 4, options).view({64 * 2, 4}).div(70.0).requires_grad_(true);
  lora.b_OR = at::arange(5 * 2 * 64, options).view({5, 2 * 64}).div(30.0).requires_grad_(true);
  lora.scale = 0.5;
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  {
    const at::NoGradGuard no_grad;
    merge_experts(base, lora, /*is_stacked=*/false, out);
  }
  at::set_num_threads(before);
  const at::Tensor want = base + factors_b(lora.b_OR, 64).matmul(factors_a(lora.a_RI, 64)) * lora.scale;
  EXPECT_CLOSE(out.detach(), want.detach(), 1e-9);
  EXPECT_TRUE(out.is_leaf());
}

// A part's gradient does not keep the memory of a part that is not trained.
TEST(Lora, GradientsNextToAFrozenPartHaveTheirOwnMemory) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  std::vector<LoraMatrix> parts(2);
  for (LoraMatrix& part : parts) {
    part.a_RI = at::ones({3, 8}, options);
    part.b_OR = at::ones({4, 3}, options).requires_grad_(true);
    part.base_OI = at::ones({4, 8}, options);
    part.scale = 0.5;
  }
  parts[1].a_RI.requires_grad_(true);
  const at::Tensor merged = at::ones({8, 8}, options);
  const std::vector<at::Tensor> leaves = merged.split(4, 0);
  lora_linear(at::ones({2, 8}, options), merged, merged, {}, leaves, {}, parts).sum().backward();
  EXPECT_FALSE(parts[0].a_RI.grad().defined());
  const at::Tensor gradient = parts[1].a_RI.grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.storage().nbytes(), gradient.nbytes());
  EXPECT_CLOSE(gradient, at::full({3, 8}, 0.5 * 2 * 4, options), 1e-12);  // scale, tokens, outputs
}

// One element of each A and B.
TEST(Lora, GradientsEqualFiniteDifferences) {
  Fixture setup = make_setup(Family::kQwen2, true);
  start_adapter(setup.model, {.rank = 2, .alpha = 3.0});
  expect_finite_differences(setup, [](const std::string&) { return true; });
}

// dA = scale B^T dW and dB = scale dW A^T, with dW from a model with the merged weights.
TEST(Lora, GradientsAreThoseOfTheMergedWeights) {
  Fixture setup = make_setup(Family::kQwen2, false);
  start_adapter(setup.model, {.rank = 4, .alpha = 2.0, .target_modules = {"q_proj", "v_proj", "down_proj"}});
  Model whole = *Model::random(setup.model.config(), 1, "float64");
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < whole.parameters().size(); ++i)
      whole.parameters()[i].tensor.copy_(setup.model.parameters()[i].tensor);
  }
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  forward_backward(setup.model, batch, LayerPath::kFast);
  forward_backward(whole, batch, LayerPath::kFast);
  const std::vector<NamedParameter>& adapter = setup.model.trainable();
  ASSERT_EQ(adapter.size(), 12U);  // A and B of three matrices in two layers
  for (size_t i = 0; i < adapter.size(); i += 2) {
    const std::string& name = adapter[i].name;
    const std::string module = name.substr(kLoraPrefix.size(), name.find(".lora_A") - kLoraPrefix.size());
    const at::Tensor d_weight = whole.find_parameter(module + ".weight")->tensor.grad();
    const at::Tensor a = adapter[i].tensor.detach();
    const at::Tensor b = adapter[i + 1].tensor.detach();
    EXPECT_LT(relative_l2(adapter[i].tensor.grad(), b.t().matmul(d_weight) * 0.5), 1e-11) << module;
    EXPECT_LT(relative_l2(adapter[i + 1].tensor.grad(), d_weight.matmul(a.t()) * 0.5), 1e-11) << module;
  }
}

TEST(Lora, BeginsAsTheBaseAndFreezesIt) {
  Fixture setup = make_setup(Family::kQwen2, true, "float32");
  const Model before = setup.model.clone_frozen();
  ASSERT_TRUE(setup.model.train_lora({.rank = 8, .alpha = 16.0}, 7).ok());
  EXPECT_EQ(setup.model.trainable().size(), 2U * 7U * 2U);
  for (size_t i = 0; i < before.parameters().size(); ++i) {
    EXPECT_CLOSE(setup.model.parameters()[i].tensor, before.parameters()[i].tensor, 0.0);
    EXPECT_FALSE(setup.model.parameters()[i].tensor.requires_grad());
  }
  double largest = 0.0;
  for (const NamedParameter& p : setup.model.trainable()) {
    EXPECT_TRUE(p.tensor.is_leaf() && p.tensor.requires_grad());
    const double bound = 1.0 / std::sqrt(static_cast<double>(p.tensor.size(1)));
    const double most = p.tensor.abs().max().item<double>();
    if (p.name.ends_with(".lora_A.weight")) {
      EXPECT_LE(most, bound) << p.name;
      largest = std::max(largest, most / bound);
      EXPECT_NEAR(p.tensor.to(at::kDouble).std().item<double>(), bound / std::sqrt(3.0), 0.2 * bound) << p.name;
    } else {
      EXPECT_EQ(most, 0.0) << p.name;
    }
  }
  EXPECT_GT(largest, 0.95);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  forward_backward(setup.model, batch, LayerPath::kFast);
  for (const NamedParameter& p : setup.model.parameters()) EXPECT_FALSE(p.tensor.grad().defined()) << p.name;
  EXPECT_FALSE(setup.model.head_grad().defined());
}

TEST(Lora, TheReferenceIsTheBaseInTheSameMemory) {
  Fixture setup = make_setup(Family::kLlama, false);
  const Model before = setup.model.clone_frozen();
  start_adapter(setup.model, {.rank = 2, .alpha = 4.0, .target_modules = {"k_proj", "o_proj"}});
  const Model reference = setup.model.base_view();
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  EXPECT_CLOSE(reference.forward_hidden(batch), before.forward_hidden(batch), 0.0);
  EXPECT_GT(max_difference(setup.model.forward_hidden(batch), before.forward_hidden(batch)), 1e-3);
  EXPECT_FALSE(reference.forward_hidden(batch).requires_grad());
  size_t num_own = 0;
  for (size_t i = 0; i < before.parameters().size(); ++i) {
    const NamedParameter& p = reference.parameters()[i];
    EXPECT_EQ(p.name, before.parameters()[i].name);
    EXPECT_CLOSE(p.tensor, before.parameters()[i].tensor, 0.0);
    if (p.tensor.const_data_ptr() != setup.model.parameters()[i].tensor.const_data_ptr()) ++num_own;
  }
  EXPECT_EQ(num_own, 8U);  // q, k and v are in one matrix, of which k is adapted; and o; of two layers
}

// Two adapters of one run do not start from the same numbers.
TEST(Lora, AStartDependsOnItsPurpose) {
  const auto start = [](RandomPurpose purpose) {
    Model model = make_setup(Family::kQwen2, false).model;
    EXPECT_TRUE(model.train_lora({.rank = 2}, 5, purpose).ok());
    return model.trainable().front().tensor.detach().clone();
  };
  const at::Tensor policy = start(RandomPurpose::kAdapterInit);
  EXPECT_TRUE(policy.equal(start(RandomPurpose::kAdapterInit)));
  EXPECT_GT(max_difference(policy, start(RandomPurpose::kCriticAdapterInit)), 0.01);
}

// A critic on the policy's base: both adapters are trained, and none changes what the other one reads.
TEST(Lora, AClassifierSharesTheBase) {
  for (const bool tied : {false, true}) {
    Fixture setup = make_setup(Family::kQwen2, tied);
    const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
    start_adapter(setup.model, {.rank = 3, .alpha = 6.0});
    ModelConfig config = *as_classifier(setup.model.config(), 1);
    Model critic = setup.model.base_as_classifier(config, 9);
    const LoraChoice choice{.rank = 2, .modules_to_save = {"score"}};
    start_adapter(critic, choice);
    EXPECT_TRUE(critic.weights().embedding_VH.is_alias_of(setup.model.weights().embedding_VH));
    EXPECT_EQ(critic.find_parameter("lm_head.weight"), nullptr);
    // One with a base of its own has the same numbers.
    Model apart = *Model::random(config, 9, "float64");
    {
      const at::NoGradGuard no_grad;
      const Model base = setup.model.base_view();
      for (NamedParameter& p : apart.parameters()) {
        const NamedParameter* const same = base.find_parameter(p.name);
        if (same != nullptr) p.tensor.copy_(same->tensor);
      }
    }
    start_adapter(apart, choice);
    const at::Tensor states = setup.model.forward_hidden(batch).detach();
    EXPECT_CLOSE(critic.forward_hidden(batch).detach(), apart.forward_hidden(batch).detach(), 0.0);
    EXPECT_CLOSE(critic.head_weight().detach(), apart.head_weight().detach(), 0.0);
    {
      const at::NoGradGuard no_grad;
      for (const NamedParameter& p : critic.trainable()) p.tensor.add_(0.1);
    }
    critic.weights_changed();
    EXPECT_CLOSE(setup.model.forward_hidden(batch).detach(), states, 0.0);
    EXPECT_GT(max_difference(critic.forward_hidden(batch).detach(), apart.forward_hidden(batch).detach()), 1e-3);
    setup.model.weights_changed();  // merges again, from the base
    EXPECT_CLOSE(setup.model.forward_hidden(batch).detach(), states, 0.0);
  }
}

TEST(Lora, SavedApartItIsReadBackByTheReaderAndGoneOnFrom) {
  Model model = *Model::load(default_env(), golden_folder("qwen2_tied"));
  start_adapter(model,
                {.rank = 2, .alpha = 5.0, .target_modules = {"all-linear"}, .exclude_modules = {"1.mlp.up_proj"}});
  EXPECT_FALSE(*model.saves_exactly({}));
  const Path apart = scratch_adapter("apart");
  const auto saved =
      model.save(default_env(), apart, {.lora = LoraSave::kApart, .base_model = golden_folder("qwen2_tied").string()});
  ASSERT_TRUE(saved.ok()) << saved.error().to_string();
  const Json config = *read_json_file(default_env(), apart / "adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 5);
  EXPECT_EQ(
      config["target_modules"],
      Json::parse(R"(["down_proj","gate_proj","k_proj","model.layers.0.mlp.up_proj","o_proj","q_proj","v_proj"])"));
  // The reader sums in float64 and rounds once, the trainer in float32.
  const Model merged = *Model::load(default_env(), apart);
  for (size_t i = 0; i < merged.parameters().size(); ++i)
    EXPECT_CLOSE(merged.parameters()[i].tensor, model.parameters()[i].tensor, 2e-7);
  const Path whole = scratch_adapter("whole");
  ASSERT_TRUE(model.save(default_env(), whole).ok());
  const Model summed = *Model::load(default_env(), whole);
  Model again = *Model::load(default_env(), golden_folder("qwen2_tied"));
  const auto loaded = again.train_lora(default_env(), apart);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  for (size_t i = 0; i < merged.parameters().size(); ++i) {
    EXPECT_CLOSE(summed.parameters()[i].tensor, model.parameters()[i].tensor, 0.0);
    EXPECT_CLOSE(again.parameters()[i].tensor, model.parameters()[i].tensor, 0.0);
  }
  ASSERT_EQ(again.trainable().size(), model.trainable().size());
  for (size_t i = 0; i < again.trainable().size(); ++i) {
    EXPECT_EQ(again.trainable()[i].name, model.trainable()[i].name);
    EXPECT_CLOSE(again.trainable()[i].tensor, model.trainable()[i].tensor, 0.0);
  }
}

// Ranks and scales by module, rslora: the merged weights are those that the reader makes.
TEST(Lora, GoesOnFromPublishedAdapters) {
  for (const auto& [name, base] :
       {std::pair{"lora_qwen2_tied", "qwen2_tied"}, std::pair{"lora_llama_rs", "llama_classic"}}) {
    Model model = *Model::load(default_env(), golden_folder(base));
    const auto loaded = model.train_lora(default_env(), golden_folder(name));
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    const Model merged = *Model::load(default_env(), golden_folder(name));
    for (size_t i = 0; i < merged.parameters().size(); ++i)
      EXPECT_CLOSE(model.parameters()[i].tensor, merged.parameters()[i].tensor, 1e-6) << merged.parameters()[i].name;
    EXPECT_FALSE(model.train_lora({}, 1).ok());  // one adapter at a time
  }
}

TEST(Lora, ModulesThatDoNotExistAreNamed) {
  const auto error_of = [](const LoraChoice& choice) {
    Fixture setup = make_setup(Family::kPhi3, false);
    const auto started = setup.model.train_lora(choice, 1);
    return started.ok() ? std::string() : started.error().to_string();
  };
  EXPECT_NE(error_of({.target_modules = {"q_proj"}}).find("'q_proj'"), std::string::npos);
  EXPECT_NE(error_of({.target_modules = {"q_proj"}}).find("qkv_proj"), std::string::npos);
  EXPECT_NE(error_of({.target_modules = {"lm_head"}}).find("'lm_head'"), std::string::npos);
  EXPECT_NE(error_of({.exclude_modules = {"proj"}}).find("'proj'"), std::string::npos);
  EXPECT_NE(error_of({.exclude_modules = {"all-linear"}}).find("no matrix is left"), std::string::npos);
  EXPECT_EQ(error_of({.target_modules = {"layers.1.self_attn.qkv_proj"}}), "");
}

}  // namespace
}  // namespace mortise
