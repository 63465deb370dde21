// Folders saved by us, loaded by transformers: same logits, no missing or unexpected tensor. Random folders written by
// transformers and PEFT, read by us: the same numbers, or a refusal that names what was changed in them. Needs a Python
// with transformers in MORTISE_ORACLES_PYTHON; without it the tests are skipped, aloud.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>

#include <cstdlib>
#include <filesystem>

#include "foundation/formats/jsonl.h"
#include "foundation/formats/safetensors.h"
#include "model/padded_eval.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

// Saves the model and, next to its folder, our results for a few tokens.
Path save_case(const Model& model, const std::string& label, const SaveOptions& options = {}) {
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / "oracle" / label;
  fs::remove_all(folder);
  const auto saved = model.save(default_env(), folder, options);
  EXPECT_TRUE(saved.ok()) << saved.error().to_string();
  const at::Tensor ids = at::empty({2, 9}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i)
    ids.mutable_data_ptr<int64_t>()[i] = (i * 37 + 5) % model.config().vocab_size;
  const auto ours = evaluate_padded(model, ids, at::empty({2, 9}, at::kLong).fill_(1));
  EXPECT_TRUE(ours.ok()) << ours.error().to_string();
  const std::span<const int64_t> id_span(ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel()));
  const at::Tensor logits = ours->logits_BTV.contiguous();
  const std::span<const float> logit_span(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
  const std::vector<int64_t>& eos = model.config().eos_token_ids;
  const TensorView views[] = {
      {"in.input_ids", DType::kI64, {2, 9}, std::as_bytes(id_span)},
      {"logits", DType::kF32, logits.sizes().vec(), std::as_bytes(logit_span)},
      {"eos_token_id", DType::kI64, {static_cast<int64_t>(eos.size())}, std::as_bytes(std::span<const int64_t>(eos))}};
  EXPECT_TRUE(write_safetensors_file(default_env(), folder.string() + ".ours.safetensors", views).ok());
  return folder;
}

Model fresh_model(bool tied) {
  ModelConfig config = *make_qwen2_config({.vocab_size = 40,
                                           .hidden_size = 24,
                                           .intermediate_size = 36,
                                           .num_heads = 3,
                                           .num_kv_heads = 1,
                                           .tie_word_embeddings = tied,
                                           .initializer_range = 0.2});
  config.eos_token_ids.push_back(7);
  if (!tied) config.eos_token_ids.push_back(9);
  config.pad_token_id = 0;
  return *Model::random(config, 5);
}

Model golden_model(const std::string& name) {
  return *Model::load(default_env(), Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name);
}

// The family of a golden folder with weights and a config.json made here.
Model remade_model(const std::string& name) {
  ModelConfig config = golden_model(name).config();
  config.config_text.clear();
  config.generation_config_text.clear();
  config.initializer_range = 0.2;
  return *Model::random(config, 9);
}

// `original`: the length beyond which the long factors hold; the rows of a case have 9 tokens.
Model longrope_model(const std::string& name, double partial, double original) {
  ModelConfig config = golden_model(name).config();
  config.config_text.clear();
  config.generation_config_text.clear();
  config.initializer_range = 0.2;
  config.rope.type = RopeType::kLongrope;
  config.rope.partial_rotary_factor = partial;
  config.rope.original_max_position_embeddings = original;
  config.rope.attention_factor = 1.3;
  const int64_t num_pairs = config.rope.rotary_dim(config.head_dim) / 2;
  for (int64_t i = 0; i < num_pairs; ++i) {
    config.rope.short_factor.push_back(1.0 + 0.1 * static_cast<double>(i));
    config.rope.long_factor.push_back(1.5 + 0.4 * static_cast<double>(i));
  }
  return *Model::random(config, 9);
}

// An adapter that was trained here, saved apart.
Path save_adapter_case(const std::string& name, const LoraChoice& choice) {
  Model model = golden_model(name);
  EXPECT_TRUE(model.train_lora(choice, 3).ok());
  {
    const at::NoGradGuard no_grad;
    uint64_t seed = 40;
    for (const NamedParameter& p : model.trainable())
      p.tensor.add_(random_tensor(p.tensor.sizes().vec(), seed++, at::kFloat, 0.1));
  }
  model.weights_changed();
  const std::string base = (Path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name).string();
  return save_case(model, "adapter_" + name, {.lora = LoraSave::kApart, .base_model = base});
}

// The differences in our reading of a folder that transformers wrote; empty if there are none.
std::string fault_of(const Path& out, const Json& row) {
  const auto expect = row["expect"].get<std::string>();
  const auto model = Model::load(default_env(), out / row["folder"].get<std::string>());
  if (!model.ok()) {
    const std::string text = model.error().to_string();
    if (expect == "refused") return "";
    if (expect == "named" && text.find(row["changed"].get<std::string>()) != std::string::npos) return "";
    return "refused: " + text;
  }
  if (expect == "refused") return "is read, though the weights do not fit";
  const auto theirs = SafetensorsFile::open(default_env(), out / (row["name"].get<std::string>() + ".safetensors"));
  if (!theirs.ok()) return theirs.error().to_string();
  const bool is_scores = theirs->find("scores") != nullptr;
  const auto tensor = [&](const char* name, at::ScalarType type) {
    const TensorView view = *theirs->get(name);
    return at::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, at::TensorOptions().dtype(type));
  };
  const at::Tensor ids = tensor("in.input_ids", at::kLong);
  const at::Tensor want = tensor(is_scores ? "scores" : "logits", at::kFloat);
  const auto ours = evaluate_padded(*model, ids, at::ones_like(ids));
  if (!ours.ok()) return ours.error().to_string();
  const double difference = max_difference(is_scores ? ours->scores_BC : ours->logits_BTV, want);
  if (difference <= 1e-4 * std::max(1.0, want.abs().max().item<double>())) return "";
  return "differs by " + std::to_string(difference);
}

void expect_same_numbers(const Path& out) {
  auto reader = JsonlReader::open(default_env(), out / "cases.jsonl");
  ASSERT_TRUE(reader.ok()) << reader.error().to_string();
  int num_read = 0;
  while (true) {
    const auto row = reader->next();
    ASSERT_TRUE(row.ok()) << row.error().to_string();
    if (!row->has_value()) break;
    const Json& value = (**row).value;
    const std::string fault = fault_of(out, value);
    if (!fault.empty())
      ADD_FAILURE() << out / value["folder"].get<std::string>() << " " << value["changed"] << " " << fault;
    num_read += value["expect"] == "equal" && fault.empty() ? 1 : 0;
  }
  EXPECT_GE(num_read, 4);
}

TEST(TransformersOracle, LoadsWhatWeSaveAndGivesOurNumbers) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: transformers did not check the saved folders";
  }
  std::vector<Path> folders = {save_case(fresh_model(true), "fresh_tied"),
                               save_case(fresh_model(false), "fresh_untied"),
                               save_case(golden_model("qwen2_bf16"), "bf16", {"bfloat16"})};
  for (const char* name : {"qwen2_untied_sharded", "qwen3_untied_v5", "llama3_rope", "lora_llama_rs"}) {
    folders.push_back(save_case(golden_model(name), name));
  }
  for (const char* name :
       {"qwen2_yarn", "qwen3_tied", "llama3_rope", "llama_bias", "mistral_sliding", "gemma2", "gemma3_text", "phi3",
        "qwen2_moe_sliding", "qwen3_moe_layers", "qwen3_moe_raw", "mixtral", "gpt_oss"}) {
    folders.push_back(save_case(remade_model(name), std::string("remade_") + name));
  }
  folders.push_back(save_case(golden_model("gemma2"), "shards", {.max_shard_bytes = 20000}));
  folders.push_back(save_adapter_case("qwen2_tied", {.rank = 4, .alpha = 6.0}));
  folders.push_back(
      save_adapter_case("llama_bias", {.rank = 2, .alpha = 4.0, .target_modules = {"v_proj", "0.mlp.up_proj"}}));
  folders.push_back(save_adapter_case("qwen3_tied", {.rank = 4, .alpha = 3.0, .use_rslora = true}));
  folders.push_back(save_adapter_case("phi3", {.rank = 3, .alpha = 3.0, .exclude_modules = {"1.self_attn.qkv_proj"}}));
  folders.push_back(save_adapter_case("qwen2_moe", {.rank = 2, .alpha = 3.0}));
  folders.push_back(save_adapter_case("mixtral", {.rank = 2, .alpha = 3.0}));
  folders.push_back(save_adapter_case("gpt_oss", {.rank = 2, .alpha = 3.0}));
  folders.push_back(save_case(golden_model("gpt_oss_mxfp4"), "widened_mxfp4"));
  folders.push_back(save_case(longrope_model("phi3", 0.5, 6.0), "phi3_long"));
  folders.push_back(save_case(longrope_model("phi3", 0.5, 9.0), "phi3_short"));
  folders.push_back(save_case(longrope_model("llama3_rope", 1.0, 6.0), "llama_long"));
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/model/transformers_oracle.py";
  const Path out = Path(MORTISE_BINARY_DIR) / "scratch" / "oracle" / "theirs";
  fs::remove_all(out);
  const std::string count = std::getenv("MORTISE_LONG") != nullptr ? "1500" : "20";
  std::string command = std::string("HF_HUB_OFFLINE=1 '") + python + "' '" + script.string() + "' '" + out.string() +
                        "' " + count + " 17";
  for (const Path& folder : folders) command += " '" + folder.string() + "'";
  EXPECT_EQ(std::system((command + " 2>&1").c_str()), 0) << command;
  expect_same_numbers(out);
}

}  // namespace
}  // namespace mortise
