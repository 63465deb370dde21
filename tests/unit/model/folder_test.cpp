// Model folders: save and load again, dtypes, random models, and what is refused.
#include <ATen/core/grad_mode.h>

#include <filesystem>

#include "foundation/formats/safetensors.h"
#include "model/model.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

Path golden(const std::string& name) { return Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name; }

Path scratch(const std::string& name) {
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / "folder_test" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::string text_of(const Path& path) { return *default_env().read_file(path); }

void expect_same_parameters(const Model& a, const Model& b) {
  ASSERT_EQ(a.parameters().size(), b.parameters().size());
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_EQ(a.parameters()[i].name, b.parameters()[i].name);
    EXPECT_CLOSE(a.parameters()[i].tensor, b.parameters()[i].tensor, 0.0);
  }
}

TEST(ModelFolder, SavedFoldersReadBackBitForBit) {
  for (const char* name : {"qwen2_tied", "qwen2_untied_sharded", "qwen3_untied_v5", "llama_bias", "qwen2_reward"}) {
    const auto model = Model::load(default_env(), golden(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    const Path folder = scratch(name);
    const auto saved = model->save(default_env(), folder);
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
    EXPECT_EQ(text_of(folder / "config.json"), text_of(golden(name) / "config.json"));
    if (fs::exists(golden(name) / "generation_config.json")) {
      EXPECT_EQ(text_of(folder / "generation_config.json"), text_of(golden(name) / "generation_config.json"));
    }
    const auto back = Model::load(default_env(), folder);
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    expect_same_parameters(*model, *back);
  }
}

TEST(ModelFolder, Bfloat16IsRaisedAndCanBeStoredAgain) {
  const auto model = Model::load(default_env(), golden("qwen2_bf16"));
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->dtype(), at::kFloat);
  const Path folder = scratch("bf16");
  ASSERT_TRUE(model->save(default_env(), folder, {"bfloat16"}).ok());
  EXPECT_EQ(text_of(folder / "config.json"), text_of(golden("qwen2_bf16") / "config.json"));
  expect_same_parameters(*model, *Model::load(default_env(), folder));
  ASSERT_TRUE(model->save(default_env(), folder).ok());  // float32 now
  EXPECT_NE(text_of(folder / "config.json"), text_of(golden("qwen2_bf16") / "config.json"));
  expect_same_parameters(*model, *Model::load(default_env(), folder));
  EXPECT_FALSE(Model::load(default_env(), golden("qwen2_bf16"), "bfloat16").ok());
  EXPECT_FALSE(Model::load(default_env(), golden("qwen2_bf16"), "fp8").ok());
}

TEST(ModelFolder, RandomModelsDependOnTheSeedAlone) {
  const ModelConfig config =
      *make_qwen2_config({.vocab_size = 50, .hidden_size = 32, .intermediate_size = 40, .initializer_range = 0.05});
  const Model a = *Model::random(config, 3);
  expect_same_parameters(a, *Model::random(config, 3));
  EXPECT_GT(max_difference(a.parameters()[0].tensor, Model::random(config, 4)->parameters()[0].tensor), 0.01);
  const at::Tensor embedding = a.parameters()[0].tensor.detach().to(at::kDouble);
  EXPECT_NEAR(embedding.std().item<double>(), 0.05, 0.005);
  EXPECT_NEAR(embedding.mean().item<double>(), 0.0, 0.005);
  int64_t elements = 0;
  for (const NamedParameter& p : a.parameters()) {
    elements += p.tensor.numel();
    EXPECT_TRUE(p.tensor.is_leaf() && p.tensor.requires_grad());
    const bool no_decay = p.name.ends_with("bias") || p.name.find("norm") != std::string::npos;
    EXPECT_EQ(p.decay, !no_decay) << p.name;
    if (!no_decay) continue;
    EXPECT_EQ(p.tensor.sum().item<double>(), p.name.ends_with("bias") ? 0.0 : 32.0) << p.name;
  }
  EXPECT_EQ(elements, config.num_parameters());
  const Path folder = scratch("random");
  ASSERT_TRUE(a.save(default_env(), folder).ok());
  expect_same_parameters(a, *Model::load(default_env(), folder));
}

// Copies a golden folder and lets a test break it.
Path broken(const std::string& name, const std::string& label) {
  const Path folder = scratch(label);
  fs::remove_all(folder);
  fs::copy(golden(name), folder);
  return folder;
}

void expect_load_error(const Path& folder, const std::string& part) {
  const auto model = Model::load(default_env(), folder);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().to_string().find(part), std::string::npos) << model.error().to_string();
}

TEST(ModelFolder, BrokenFoldersAreRefusedByName) {
  expect_load_error(scratch("empty"), "config.json");
  Path folder = broken("qwen2_tied", "no_weights");
  fs::remove(folder / "model.safetensors");
  expect_load_error(folder, "model.safetensors");
  folder = broken("qwen2_untied_sharded", "no_shard");
  fs::remove(folder / "model-00002-of-00005.safetensors");
  expect_load_error(folder, "model-00002-of-00005.safetensors");
  folder = broken("qwen2_untied_sharded", "swapped_shard");
  fs::copy_file(folder / "model-00003-of-00005.safetensors", folder / "model-00002-of-00005.safetensors",
                fs::copy_options::overwrite_existing);
  expect_load_error(folder, "the index says it is");
  // Another model's config: shapes differ; a layer more: tensors are missing; a layer fewer: tensors are left over.
  const auto with_config = [&](const std::string& from, const std::string& to) {
    const Path edited = broken("qwen2_tied", "edited");
    std::string text = text_of(edited / "config.json");
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    EXPECT_TRUE(write_file(default_env(), edited / "config.json", text).ok());
    return edited;
  };
  expect_load_error(with_config("\"intermediate_size\": 96", "\"intermediate_size\": 95"), "gate_proj.weight");
  expect_load_error(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), "model.layers.2.");
  expect_load_error(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), "is not part of this model");
}

}  // namespace
}  // namespace mortise
