// Variants of adapters without an outside judge: both layer paths, finite differences, starts, the reference, folders,
// and settings that fit nothing. lora_peft_test.cpp compares the numbers with PEFT's.
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_svd.h>

#include <filesystem>

#include "foundation/formats/json.h"
#include "gradient_fixture.h"
#include "model/adapters/trained_lora.h"
#include "support/golden_models.h"

namespace mortise {
namespace {

Fixture varied(Family family, bool tied, const LoraChoice& choice) {
  Fixture setup = make_setup(family, tied);
  start_adapter(setup.model, choice, 0.1);
  return setup;
}

LoraChoice everything() {
  return {.rank = 2,
          .alpha = 3.0,
          .target_modules = {"q_proj", "o_proj", "up_proj"},
          .use_dora = true,
          .modules_to_save = {"v_proj", "lm_head", "norm"},
          .bias = LoraBias::kAll};
}

// Experts and routers of each family, next to matrices of attention.
LoraChoice of_mixture(Family family) {
  LoraChoice choice{.rank = 3, .alpha = 4.0, .target_modules = {"v_proj"}};
  choice.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj",
                              family == Family::kGptOss ? "mlp.router.weight" : "mlp.gate.weight"};
  if (family == Family::kQwen2Moe) choice.target_modules.emplace_back("shared_expert_gate");
  return choice;
}

constexpr Family kMixtures[] = {Family::kQwen2Moe, Family::kQwen3Moe, Family::kMixtral, Family::kGptOss};

TEST(LoraVariants, ExpertsFastEqualPlain) {
  for (const Family family : kMixtures) {
    Fixture setup = varied(family, false, of_mixture(family));
    expect_fast_equals_plain(setup);
  }
}

TEST(LoraVariants, GradientsOfExpertsEqualFiniteDifferences) {
  for (const Family family : kMixtures) {
    Fixture setup = varied(family, false, of_mixture(family));
    expect_finite_differences(setup, [](const std::string& name) { return name.find(".mlp.") != std::string::npos; });
  }
}

// A layer that arrives from other ranks is merged by itself.
TEST(LoraVariants, ALayerOfExpertsIsMergedAsTheWholeModelIs) {
  for (const Family family : kMixtures) {
    Fixture setup = varied(family, false, of_mixture(family));
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> merged;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const at::Tensor& matrix : setup.model.trained_lora()->merged_matrices(layer))
        merged.push_back(matrix.clone());
    }
    size_t i = 0;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (at::Tensor matrix : setup.model.trained_lora()->merged_matrices(layer)) matrix.zero_();
      setup.model.trained_lora()->merge_layer(layer);
      for (const at::Tensor& matrix : setup.model.trained_lora()->merged_matrices(layer))
        EXPECT_TRUE(at::equal(matrix, merged[i++]));
    }
    EXPECT_EQ(i, merged.size());
  }
}

// Gradients of both paths, with or without the adapter's dropout.
std::vector<at::Tensor> path_gradients(Model& model, const PackedBatch& batch, LayerPath path, bool dropout) {
  model.zero_grad();
  ForwardOptions options;
  options.path = path;
  if (dropout) options.lora_dropout = LoraDropout{0.3, 17, 1, batch.owners_N, batch.positions_N};
  const at::Tensor rows = model.forward_hidden(batch, options).index_select(0, batch.predict_index_R);
  rows.backward(random_tensor({64, rows.size(1)}, 77).narrow(0, 0, rows.size(0)));
  return gradients_of(model.trainable());
}

TEST(LoraVariants, FastEqualsPlain) {
  for (const Family family : {Family::kQwen2, Family::kLlama, Family::kGemma3, Family::kQwen2Moe}) {
    Fixture setup = varied(family, false, everything());
    std::vector<PackRow> rows = setup.rows();
    for (size_t i = 0; i < rows.size(); ++i) rows[i].row_id = static_cast<int64_t>(i);
    const PackedBatch batch = *pack_rows(rows, {.vocab_size = 23});
    for (const bool dropout : {false, true}) {
      const auto fast = path_gradients(setup.model, batch, LayerPath::kFast, dropout);
      const auto plain = path_gradients(setup.model, batch, LayerPath::kPlain, dropout);
      for (size_t i = 0; i < fast.size(); ++i) {
        const std::string& name = setup.model.trainable()[i].name;
        ASSERT_EQ(fast[i].defined(), plain[i].defined()) << name;
        if (!fast[i].defined()) {
          EXPECT_EQ(name, "base_model.model.lm_head.weight") << "the head is not in this pass";
          continue;
        }
        EXPECT_GT(plain[i].abs().max().item<double>(), 0.0) << name;
        EXPECT_LT(relative_l2(fast[i], plain[i]), 1e-10) << name;
      }
    }
  }
}

// One element of each magnitude, whole matrix and bias. (The paper's gradient of A and B in DoRA is not the derivative:
// the norm counts as a constant.)
TEST(LoraVariants, GradientsEqualFiniteDifferences) {
  Fixture setup = varied(Family::kQwen2, false, everything());
  expect_finite_differences(setup, [](const std::string& name) {
    return !name.ends_with(".lora_A.weight") && !name.ends_with(".lora_B.weight");
  });
}

TEST(LoraVariants, EveryStartLeavesTheModelAsItIs) {
  for (const LoraInit init : {LoraInit::kDefault, LoraInit::kGaussian, LoraInit::kPissa, LoraInit::kOlora}) {
    for (const bool dora : {false, true}) {
      Fixture setup = make_setup(Family::kQwen2, true);
      const Model before = setup.model.clone_frozen();
      ASSERT_TRUE(setup.model.train_lora({.rank = 4, .alpha = 6.0, .use_dora = dora, .init = init}, 7).ok());
      for (size_t i = 0; i < before.parameters().size(); ++i) {
        EXPECT_CLOSE(setup.model.parameters()[i].tensor, before.parameters()[i].tensor, 1e-12);
        EXPECT_CLOSE(setup.model.base_view().parameters()[i].tensor, before.parameters()[i].tensor, 0.0);
      }
      const at::Tensor a = setup.model.trainable()[0].tensor, b = setup.model.trainable()[1].tensor;
      EXPECT_EQ(b.abs().max().item<double>() > 0.0, changes_base(init));
      if (init == LoraInit::kGaussian) {
        EXPECT_NEAR(a.std().item<double>(), 0.25, 0.06);
      }
    }
  }
}

// The largest singular value belongs to A and B, not to what they left.
TEST(LoraVariants, PissaTakesTheLargestSingularValues) {
  Fixture setup = make_setup(Family::kQwen2, true);
  const at::Tensor whole =
      setup.model.find_parameter("model.layers.0.self_attn.q_proj.weight")->tensor.detach().clone();
  ASSERT_TRUE(setup.model.train_lora({.rank = 4, .alpha = 4.0, .init = LoraInit::kPissa}, 7).ok());
  const at::Tensor a = setup.model.trainable()[0].tensor.detach(), b = setup.model.trainable()[1].tensor.detach();
  const at::Tensor all = std::get<1>(at::linalg_svd(whole, false));
  const at::Tensor left = std::get<1>(at::linalg_svd(whole - b.matmul(a), false));
  EXPECT_CLOSE(left.narrow(0, 0, 4), all.narrow(0, 4, 4), 1e-12);
  EXPECT_NE(setup.model.train_lora({}, 1).error().to_string().find("already"), std::string::npos);
}

TEST(LoraVariants, TheReferenceKeepsWhatIsTrainedAsAWhole) {
  const Model before = make_setup(Family::kQwen2, true).model.clone_frozen();
  const Fixture setup = varied(Family::kQwen2, true,
                               {.rank = 2, .alpha = 3.0, .modules_to_save = {"embed_tokens"}, .bias = LoraBias::kAll});
  const Model reference = setup.model.base_view();
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  EXPECT_CLOSE(reference.forward_hidden(batch), before.forward_hidden(batch), 0.0);
  EXPECT_CLOSE(reference.head_weight(), before.head_weight(), 0.0);
  EXPECT_GT(max_difference(setup.model.head_weight(), before.head_weight()), 1e-3);
  for (const NamedParameter& p : reference.parameters()) EXPECT_FALSE(p.tensor.requires_grad()) << p.name;
}

TEST(LoraVariants, SavedApartTheyAreReadBack) {
  const LoraChoice choices[] = {
      everything(),
      {.rank = 3, .alpha = 4.0, .use_rslora = true, .init = LoraInit::kPissa},
      {.rank = 3, .alpha = 4.0, .use_dora = true, .init = LoraInit::kOlora, .rank_pattern = {{"q_proj", 2}}},
      {.rank = 2, .alpha = 4.0, .layers_to_transform = {1}, .alpha_pattern = {{"mlp.*", 1.0}}}};
  const Path root = Path(MORTISE_BINARY_DIR) / "scratch/lora_variants_test/dense";
  std::filesystem::remove_all(root);
  const Fixture plain = make_setup(Family::kQwen2, false);
  ASSERT_TRUE(plain.model.save(default_env(), root / "base", {.dtype = "float64"}).ok());
  for (size_t i = 0; i < std::size(choices); ++i) {
    const Fixture setup = varied(Family::kQwen2, false, choices[i]);
    const Path folder = root / std::to_string(i);
    const SaveOptions apart{.dtype = "float64", .lora = LoraSave::kApart, .base_model = (root / "base").string()};
    ASSERT_TRUE(setup.model.save(default_env(), folder, apart).ok());
    const Model merged = Model::load(default_env(), folder, "float64").value();
    Model again = *Model::load(default_env(), root / "base", "float64");
    const auto loaded = again.train_lora(default_env(), folder);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    for (size_t p = 0; p < merged.parameters().size(); ++p) {
      EXPECT_CLOSE(merged.parameters()[p].tensor, setup.model.parameters()[p].tensor, 1e-12);
      EXPECT_CLOSE(again.parameters()[p].tensor, setup.model.parameters()[p].tensor, 1e-12);
    }
  }
}

TEST(LoraVariants, AdaptersOfExpertsAreReadBack) {
  const Path root = Path(MORTISE_BINARY_DIR) / "scratch/lora_variants_test/experts";
  std::filesystem::remove_all(root);
  for (const auto& [name, family] :
       {std::pair("qwen2_moe", Family::kQwen2Moe), std::pair("qwen3_moe", Family::kQwen3Moe),
        std::pair("mixtral", Family::kMixtral), std::pair("gpt_oss", Family::kGptOss)}) {
    const Path base = test::golden_model(name), folder = root / name;
    Model model = *Model::load(default_env(), base, "float64");
    start_adapter(model, of_mixture(family), 0.1);
    const SaveOptions apart{.dtype = "float64", .lora = LoraSave::kApart, .base_model = base.string()};
    ASSERT_TRUE(model.save(default_env(), folder, apart).ok());
    const Model merged = Model::load(default_env(), folder, "float64").value();
    Model again = *Model::load(default_env(), base, "float64");
    const auto loaded = again.train_lora(default_env(), folder);
    ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
    for (size_t p = 0; p < merged.parameters().size(); ++p) {
      EXPECT_CLOSE(merged.parameters()[p].tensor, model.parameters()[p].tensor, 1e-12);
      EXPECT_CLOSE(again.parameters()[p].tensor, model.parameters()[p].tensor, 1e-12);
    }
    // The file's shapes are checked against the model's experts, never allocated on the word of the configuration.
    Json config = *read_json_file(default_env(), folder / "adapter_config.json");
    config["r"] = 2;
    ASSERT_TRUE(write_file(default_env(), folder / "adapter_config.json", dump_json(config, 1)).ok());
    const auto wrong = Model::load(default_env(), folder, "float64");
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.error().to_string().find("adapter_config.json"), std::string::npos) << wrong.error().to_string();
  }
}

TEST(LoraVariants, WhatFitsNothingIsNamed) {
  const auto error_of = [](const LoraChoice& choice) {
    Fixture setup = make_setup(Family::kQwen2, false);
    const auto started = setup.model.train_lora(choice, 1);
    return started.ok() ? std::string() : started.error().where + ": " + started.error().to_string();
  };
  EXPECT_EQ(error_of({.layers_to_transform = {2}}).find("layers_to_transform: "), 0U);
  EXPECT_NE(error_of({.layers_to_transform = {2}}).find("no layer 2"), std::string::npos);
  EXPECT_EQ(error_of({.rank_pattern = {{"q_porj", 2}}}).find("rank_pattern: "), 0U);
  EXPECT_NE(error_of({.rank_pattern = {{"q_proj", 0}}}).find("rank_pattern"), std::string::npos);
  EXPECT_NE(error_of({.rank_pattern = {{"(", 2}}}).find("not a regular expression"), std::string::npos);
  EXPECT_NE(error_of({.alpha_pattern = {{"q_proj", "two"}}}).find("alpha_pattern"), std::string::npos);
  EXPECT_EQ(error_of({.modules_to_save = {"lm_haed"}}).find("modules_to_save: "), 0U);
  EXPECT_NE(error_of({.rank = 17, .init = LoraInit::kPissa}).find("rank 17"), std::string::npos);
}

}  // namespace
}  // namespace mortise
