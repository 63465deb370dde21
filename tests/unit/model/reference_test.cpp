// Logits, log-probs and entropies of the reference folders (transformers in float64), in all config forms and on both
// layer paths, and by the code of a device.
#include <filesystem>

#include "model/padded_eval.h"
#include "stored_tensor.h"
#include "support/golden_models.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

Path reference_folder(const std::string& name) { return test::golden_model(name); }

struct Case {
  std::string name;
  std::string config = "config.json";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name << "/" << c.config; }

class Reference : public testing::TestWithParam<Case> {};

// The folder with the asked form of its config, in a scratch folder (files are links).
Path scratch_folder(const Case& c) {
  if (c.config == "config.json") return reference_folder(c.name);
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / "reference" / (c.name + "." + c.config);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(reference_folder(c.name))) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("config")) continue;
    std::filesystem::create_symlink(entry.path(), folder / file);
  }
  std::filesystem::copy_file(reference_folder(c.name) / c.config, folder / "config.json");
  return folder;
}

// Only real places are compared: padding is 0 on both sides.
TEST_P(Reference, EqualsTransformers) {
  const Path folder = scratch_folder(GetParam());
  auto file = SafetensorsFile::open(default_env(), folder / "forward.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  for (const std::string dtype : {"float32", "float64"}) {
    auto model = Model::load(default_env(), folder, dtype);
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    for (const LayerPath path : {LayerPath::kFast, LayerPath::kPlain, LayerPath::kOperators}) {
      if (path == LayerPath::kOperators) {  // the head too
        ASSERT_TRUE(model->move_to({.by_operators = true}).ok());
      }
      const auto got = evaluate_padded(*model, stored_tensor(*file, "in.input_ids"),
                                       stored_tensor(*file, "in.attention_mask"), {path, {}});
      ASSERT_TRUE(got.ok()) << got.error().to_string();
      // The reference keeps its rotation frequencies in float32, which is half of its drift; plain float32 drifts by
      // some 1e-5, in an adapted model with larger logits by four times that. Never more than 1e-4.
      const double drift =
          file->metadata().contains("float32_drift") ? std::stod(file->metadata().at("float32_drift")) : 0;
      const double tolerance = dtype == "float64" ? std::max(5e-6, 0.5 * drift) : std::max(5e-5, 2.5 * drift);
      ASSERT_LE(tolerance, 1e-4);
      if (model->config().is_classifier) {
        EXPECT_CLOSE(got->scores_BC, stored_tensor(*file, "expected.scores"), tolerance) << dtype;
        continue;
      }
      EXPECT_CLOSE(got->logits_BTV, stored_tensor(*file, "expected.logits"), tolerance) << dtype;
      EXPECT_CLOSE(got->log_prob_BT1, stored_tensor(*file, "expected.log_prob"), tolerance) << dtype;
      EXPECT_CLOSE(got->entropy_BT1, stored_tensor(*file, "expected.entropy"), tolerance) << dtype;
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& name : test::golden_models("forward.safetensors")) {
    cases.push_back({name, "config.json"});
    for (const char* config : {"config.classic.json", "config.v5.json"}) {
      if (std::filesystem::exists(reference_folder(name) / config)) cases.push_back({name, config});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Folders, Reference, testing::ValuesIn(all_cases()), [](const auto& param_info) {
  std::string name = param_info.param.name + "_" + param_info.param.config;
  for (char& c : name) {
    if (c == '.') c = '_';
  }
  return name;
});

TEST(ReferenceFolders, GenerationConfigGoesFirstForEndIds) {
  const auto config = read_model_config(default_env(), reference_folder("qwen2_multi_eos"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->eos_token_ids, (std::vector<int64_t>{137, 252}));
}

TEST(ReferenceFolders, ClassicAndNewFormsMeanTheSame) {
  const std::vector<std::string> names = test::golden_models("config.v5.json");
  ASSERT_GE(names.size(), 16U);
  for (const std::string& name : names) {
    ModelConfig configs[2];
    for (int i = 0; i < 2; ++i) {
      const Path path = reference_folder(name) / (i == 0 ? "config.classic.json" : "config.v5.json");
      auto config = parse_model_config(*default_env().read_file(path), "", path.string());
      ASSERT_TRUE(config.ok()) << config.error().to_string();
      configs[i] = *config;
    }
    EXPECT_EQ(configs[0].rope, configs[1].rope) << name;
    EXPECT_EQ(configs[0].window_rope, configs[1].window_rope) << name;
    EXPECT_EQ(configs[0].windows, configs[1].windows) << name;
    EXPECT_EQ(configs[0].head_dim, configs[1].head_dim) << name;
    EXPECT_EQ(configs[0].num_kv_heads, configs[1].num_kv_heads) << name;
    EXPECT_EQ(configs[0].num_parameters(), configs[1].num_parameters()) << name;
  }
}

TEST(ReferenceFolders, IdsOutsideTheVocabularyAreRefusedByRow) {
  const auto model = Model::load(default_env(), reference_folder("qwen2_tied"));
  ASSERT_TRUE(model.ok());
  at::Tensor ids = at::empty({2, 3}, at::kLong).fill_(1);
  ids.mutable_data_ptr<int64_t>()[5] = 311;
  const auto got = evaluate_padded(*model, ids, at::empty({2, 3}, at::kLong).fill_(1));
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.error().to_string().find("row 1"), std::string::npos) << got.error().to_string();
  EXPECT_NE(got.error().to_string().find("311"), std::string::npos) << got.error().to_string();
}

}  // namespace
}  // namespace mortise
