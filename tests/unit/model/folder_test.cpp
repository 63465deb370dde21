// Model folders: saving and loading again, dtypes, random models, and what the loader refuses.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "model/model.h"
#include "model/padded_eval.h"
#include "support/temp_dir.h"
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
  EXPECT_FALSE(Model::load(default_env(), golden("qwen2_bf16"), "float16").ok());
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

// Same names, same bytes.
void expect_same_files(const Path& saved, const Path& original, const std::vector<std::string>& expected) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(saved)) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected));
  for (const std::string& name : names) {
    EXPECT_EQ(text_of(saved / name), text_of(original / name)) << original.string() << "/" << name;
  }
}

TEST(ModelFolder, UntrainedFoldersAreSavedByteForByte) {
  for (const auto& entry : fs::directory_iterator(Path(MORTISE_SOURCE_DIR) / "tests/golden/models")) {
    const std::string name = entry.path().filename().string();
    // Matrices in four bits are saved as plain numbers (four_bit_test.cpp).
    if (!entry.is_directory() || name.starts_with("lora_") || name.ends_with("_nf4") || name.ends_with("fp4")) continue;
    const auto model = Model::load(default_env(), golden(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    const Path folder = scratch("same_" + name);
    ASSERT_TRUE(model->save(default_env(), folder, {.dtype = "stored"}).ok());
    std::vector<std::string> expected;
    for (const auto& file : fs::directory_iterator(golden(name))) {
      const std::string file_name = file.path().filename().string();
      const bool is_case = file_name == "forward.safetensors" || file_name == "greedy.json" ||
                           file_name == "config.classic.json" || file_name == "config.v5.json";
      if (!is_case) expected.push_back(file_name);
    }
    expect_same_files(folder, golden(name), expected);
  }
}

// What was trained is saved in the layout that was read, and read back.
TEST(ModelFolder, TrainedWeightsKeepTheLayout) {
  auto model = Model::load(default_env(), golden("qwen2_untied_sharded"));
  ASSERT_TRUE(model.ok());
  {
    const at::NoGradGuard no_grad;
    for (NamedParameter& p : model->parameters()) p.tensor.add_(0.25);
  }
  const Path folder = scratch("trained");
  ASSERT_TRUE(model->save(default_env(), folder, {.dtype = "stored"}).ok());
  EXPECT_TRUE(fs::exists(folder / "model-00005-of-00005.safetensors"));
  EXPECT_NE(text_of(folder / "model-00005-of-00005.safetensors"),
            text_of(golden("qwen2_untied_sharded") / "model-00005-of-00005.safetensors"));
  expect_same_parameters(*model, *Model::load(default_env(), folder));
}

TEST(ModelFolder, ShardsHoldNoMoreThanAsked) {
  const auto model = Model::load(default_env(), golden("qwen2_tied"));
  ASSERT_TRUE(model.ok());
  const Path folder = scratch("shards");
  ASSERT_TRUE(model->save(default_env(), folder).ok());  // one file, which must not exist afterwards
  constexpr int64_t kMost = 40000;
  ASSERT_TRUE(model->save(default_env(), folder, {.dtype = "bfloat16", .max_shard_bytes = kMost}).ok());
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  const Json index = *read_json_file(default_env(), folder / "model.safetensors.index.json");
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) files.insert(file.get<std::string>());
  EXPECT_GT(files.size(), 2U);
  int64_t total = 0;
  for (const std::string& name : files) {
    const auto file = SafetensorsFile::open(default_env(), folder / name);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    int64_t size = 0;
    for (const TensorView& tensor : file->tensors()) {
      EXPECT_EQ(index["weight_map"][tensor.name], name);
      EXPECT_EQ(tensor.dtype, DType::kBF16);
      size += static_cast<int64_t>(tensor.bytes.size());
    }
    EXPECT_LE(size, kMost);
    total += size;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["metadata"]["total_parameters"], model->config().num_parameters());
  const auto back = Model::load(default_env(), folder);
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  for (size_t i = 0; i < back->parameters().size(); ++i) {
    const at::Tensor rounded = model->parameters()[i].tensor.to(at::kBFloat16).to(at::kFloat);
    EXPECT_CLOSE(back->parameters()[i].tensor, rounded, 0.0);
  }
  ASSERT_TRUE(model->save(default_env(), folder).ok());
  EXPECT_FALSE(fs::exists(folder / "model.safetensors.index.json"));
  expect_same_parameters(*model, *Model::load(default_env(), folder));
}

// A head next to tied embeddings is fine if it is the same matrix, and an error if not.
TEST(ModelFolder, ATiedHeadMustEqualTheEmbeddings) {
  const auto model = Model::load(default_env(), golden("qwen2_tied"));
  ASSERT_TRUE(model.ok());
  for (const bool is_same : {true, false}) {
    const Path folder = scratch("tied_head");
    fs::copy(golden("qwen2_tied"), folder);
    std::vector<at::Tensor> held;
    std::vector<TensorView> views;
    for (const NamedParameter& p : model->parameters()) held.push_back(p.tensor.detach().contiguous());
    held.push_back(model->parameters()[0].tensor.detach().clone());
    if (!is_same) held.back().mutable_data_ptr<float>()[held.back().numel() - 1] += 1.0f;
    for (size_t i = 0; i < held.size(); ++i) {
      const std::string name = i + 1 < held.size() ? model->parameters()[i].name : "lm_head.weight";
      const auto* data = static_cast<const std::byte*>(held[i].const_data_ptr());
      views.push_back({name, DType::kF32, held[i].sizes().vec(), {data, held[i].nbytes()}});
    }
    ASSERT_TRUE(write_safetensors_file(default_env(), folder / "model.safetensors", views).ok());
    const auto back = Model::load(default_env(), folder);
    EXPECT_EQ(back.ok(), is_same);
    if (is_same) {
      const Path again = scratch("tied_head_again");
      ASSERT_TRUE(back->save(default_env(), again, {.dtype = "stored"}).ok());
      EXPECT_EQ(text_of(again / "model.safetensors"), text_of(folder / "model.safetensors"));
    } else {
      EXPECT_NE(back.error().to_string().find("'lm_head.weight' differs"), std::string::npos);
    }
  }
}

TEST(LoraFolder, SavedApartItIsTheSameAndMergedItIsTheSum) {
  for (const char* name : {"lora_qwen2_tied", "lora_llama_rs"}) {
    const auto model = Model::load(default_env(), golden(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    EXPECT_TRUE(model->has_adapter());
    const Path apart = scratch(std::string("apart_") + name);
    ASSERT_TRUE(model->save(default_env(), apart, {.lora = LoraSave::kApart}).ok());
    expect_same_files(apart, golden(name), {"adapter_config.json", "adapter_model.safetensors"});
    const std::string base = name == std::string("lora_llama_rs") ? "llama_classic" : "qwen2_tied";
    ASSERT_TRUE(
        model->save(default_env(), apart, {.lora = LoraSave::kApart, .base_model = golden(base).string()}).ok());
    const auto again = Model::load(default_env(), apart);
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    expect_same_parameters(*model, *again);
    const Path merged = scratch(std::string("merged_") + name);
    ASSERT_TRUE(model->save(default_env(), merged).ok());
    const auto whole = Model::load(default_env(), merged);
    ASSERT_TRUE(whole.ok()) << whole.error().to_string();
    EXPECT_FALSE(whole->has_adapter());
    expect_same_parameters(*model, *whole);
    EXPECT_FALSE(whole->save(default_env(), scratch("none"), {.lora = LoraSave::kApart}).ok());
  }
}

TEST(LoraFolder, TrainedWeightsAreNotSavedApart) {
  auto model = Model::load(default_env(), golden("lora_qwen2_tied"));
  ASSERT_TRUE(model.ok());
  const at::NoGradGuard no_grad;
  model->parameters()[3].tensor.add_(1.0);
  const auto saved = model->save(default_env(), scratch("stale"), {.lora = LoraSave::kApart});
  ASSERT_FALSE(saved.ok());
  EXPECT_NE(saved.error().to_string().find("trained"), std::string::npos) << saved.error().to_string();
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

// The adapter with one key of its configuration changed, its base named by an absolute path.
Path adapter_with(const std::string& key, const Json& value) {
  const Path folder = broken("lora_qwen2_tied", "adapter");
  Json json = *read_json_file(default_env(), folder / "adapter_config.json");
  json["base_model_name_or_path"] = golden("qwen2_tied").string();
  json[key] = value;
  EXPECT_TRUE(write_file(default_env(), folder / "adapter_config.json", dump_json(json)).ok());
  return folder;
}

TEST(LoraFolder, VariantsAndMismatchesAreRefusedByName) {
  ASSERT_TRUE(Model::load(default_env(), adapter_with("inference_mode", false)).ok());
  const auto plain = Model::load(default_env(), golden("lora_qwen2_tied"));
  const auto with_flag = Model::load(default_env(), adapter_with("fan_in_fan_out", true));
  ASSERT_TRUE(plain.ok() && with_flag.ok());
  expect_same_parameters(*plain, *with_flag);  // as PEFT, which says that it makes no difference to linear layers
  const std::pair<const char*, Json> fields[] = {
      {"use_dora", "yes"},
      {"bias", "some"},
      {"modules_to_save", "lm_head"},
      {"lora_bias", true},
      {"peft_type", "IA3"},
      {"init_lora_weights", "pissa_niter_4"},
      {"layer_replication", Json::array({Json::array({0, 1})})},
      {"trainable_token_indices", Json::array({1})},
      {"r", 0},
      {"lora_alpha", "8"},
      {"rank_pattern", Json{{"q_proj", -1}}},
      {"alpha_pattern", Json{{"q_proj(", 1}}},
      {"r", int64_t{1'000'000'000'000'000}},
      {"r", 1e300},
      {"lora_alpha", 1e300},
      {"rank_pattern", Json{{"q_proj", 1e300}}},
      {"rank_pattern", Json{{"q_proj", 1.5}}},
      {"rank_pattern", Json{{"q_proj", uint64_t{1} << 63}}},
      {"alpha_pattern", Json{{"q_proj", 1e300}}},
      {"rank_pattern", Json{{std::string(20'000, '(') + std::string(20'000, ')'), 1}}},
      {"alpha_pattern", Json{{"a)(b", 1}}}};
  for (const auto& [key, value] : fields) expect_load_error(adapter_with(key, value), "'" + std::string(key) + "'");
  expect_load_error(adapter_with("r", 3), "lora_A.weight' has shape");
  expect_load_error(adapter_with("use_dora", true), "has no lora_magnitude_vector with it");
  // It matches nothing, which is found without trying.
  EXPECT_TRUE(Model::load(default_env(), adapter_with("rank_pattern", Json{{"([a-z_.0-9]+)+!", 2}})).ok());
  // The loader allocates no memory for a rank that the tensors do not have.
  expect_load_error(adapter_with("r", 1'000'000), "does not fit the rank 1000000 of its module");
  expect_load_error(adapter_with("rank_pattern", Json{{"([a-z_.0-9]+)+[!?]", 2}}),
                    "cannot be compared with the module");
  expect_load_error(adapter_with("base_model_name_or_path", "not/here"), "not/here");
  Path folder = adapter_with("inference_mode", true);
  fs::remove(folder / "adapter_model.safetensors");
  expect_load_error(folder, "adapter_model.safetensors");
  // One tensor each: B is missing, no such module, a variant's tensor, not PEFT's prefix.
  const std::vector<float> values(4 * 48, 0.5F);
  const auto with_tensor = [&](const std::string& name) {
    const std::vector<TensorView> views = {view_of<float>(name, values, {4, 48})};
    EXPECT_TRUE(write_safetensors_file(default_env(), folder / "adapter_model.safetensors", views).ok());
    return folder;
  };
  const std::string layer = "base_model.model.model.layers.0.self_attn.";
  expect_load_error(with_tensor(layer + "q_proj.lora_A.weight"), "no lora_B");
  expect_load_error(with_tensor(layer + "q_prof.weight"), "did you mean");
  expect_load_error(with_tensor(layer + "q_proj.lora_magnitude_vector.weight"), "variant");
  expect_load_error(with_tensor("model.layers.0.self_attn.q_proj.lora_A.weight"), "base_model.model.");
}

// The golden adapter of a language model with PEFT's task_type and a tensor more, as TRL saves a reward model.
Path reward_adapter(const std::string& task, const std::string& tensor, std::vector<int64_t> shape,
                    const std::vector<float>& values) {
  const Path folder = adapter_with("task_type", task);
  const auto file = SafetensorsFile::open(default_env(), golden("lora_qwen2_tied") / "adapter_model.safetensors");
  EXPECT_TRUE(file.ok());
  std::vector<TensorView> views(file->tensors().begin(), file->tensors().end());
  views.push_back({"base_model.model." + tensor, DType::kF32, std::move(shape), std::as_bytes(std::span(values))});
  EXPECT_TRUE(write_safetensors_file(default_env(), folder / "adapter_model.safetensors", views).ok());
  return folder;
}

TEST(LoraFolder, ARewardModelsAdapterBringsItsHead) {
  const auto causal = Model::load(default_env(), golden("lora_qwen2_tied"));
  ASSERT_TRUE(causal.ok()) << causal.error().to_string();
  const int64_t width = causal->config().hidden_size;
  std::vector<float> head(static_cast<size_t>(width));
  for (size_t i = 0; i < head.size(); ++i) head[i] = 0.1F * static_cast<float>(i % 7) - 0.25F;
  const Path folder = reward_adapter("SEQ_CLS", "score.weight", {1, width}, head);
  const auto model = Model::load(default_env(), folder);
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  const auto config = read_model_folder_config(default_env(), folder);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  for (const ModelConfig& c : {model->config(), *config}) {
    EXPECT_TRUE(c.is_classifier);
    EXPECT_EQ(c.num_labels, 1);
  }
  for (const NamedParameter& p : model->parameters()) {
    if (p.name == kScoreHead) continue;
    EXPECT_CLOSE(p.tensor, causal->find_parameter(p.name)->tensor, 0.0) << p.name;
  }
  // By hand: the last token's hidden state and the head.
  const std::vector<std::vector<int64_t>> rows = {{5, 17, 90, 4}, {7, 250}};
  const auto scores = classifier_scores(*model, rows, std::nullopt);
  ASSERT_TRUE(scores.ok()) << scores.error().to_string();
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < rows.size(); ++b) {
    const PackRow row{std::span(rows[b]).first(1), std::span(rows[b]).subspan(1), -1};
    const PackedBatch batch = *pack_rows({&row, 1}, {.keep_last_token = true, .vocab_size = 311});
    const at::Tensor hidden = causal->forward_hidden(batch).select(0, batch.last_index[0]).contiguous();
    double want = 0.0;
    for (size_t i = 0; i < head.size(); ++i)
      want += static_cast<double>(hidden.const_data_ptr<float>()[i]) * static_cast<double>(head[i]);
    EXPECT_NEAR(scores->contiguous().const_data_ptr<float>()[b], want, 1e-5);
  }
  // Merged it is a classifier's folder; apart it is the adapter as it came.
  for (const char* dtype : {"", "stored"}) {
    const Path merged = scratch(std::string("reward_merged") + dtype);
    const auto saved = model->save(default_env(), merged, {.dtype = dtype});
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
    const Json written = *read_json_file(default_env(), merged / "config.json");
    EXPECT_EQ(written["architectures"], Json::array({"Qwen2ForSequenceClassification"}));
    EXPECT_EQ(written["id2label"].size(), 1U);
    const auto again = Model::load(default_env(), merged);
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->config().num_labels, 1);
    expect_same_parameters(*model, *again);
  }
  const Path apart = scratch("reward_apart");
  ASSERT_TRUE(model->save(default_env(), apart, {.lora = LoraSave::kApart}).ok());
  expect_same_files(apart, folder, {"adapter_config.json", "adapter_model.safetensors"});
}

TEST(LoraFolder, HeadsOfRewardModelsThatCannotBeAreRefusedByName) {
  const std::vector<float> values(49, 0.5F);
  expect_load_error(adapter_with("task_type", "SEQ_CLS"), "modules_to_save = [\"score\"]");
  for (const char* task : {"TOKEN_CLS", "QUESTION_ANS"})
    expect_load_error(adapter_with("task_type", task), "'task_type'");
  expect_load_error(reward_adapter("SEQ_CLS", "score.weight", {1, 49}, values), "score.weight' has shape");
  expect_load_error(reward_adapter("SEQ_CLS", "score.weight", {49}, values), "labels x hidden_size");
  expect_load_error(reward_adapter("SEQ_CLS", "score.bias", {49}, values), "neither the adapter nor its base");
}

// Bytes of files without names that this process has in memory.
uint64_t pages_of_unnamed_files() {
  std::ifstream maps("/proc/self/smaps");
  uint64_t kib = 0;
  bool is_unnamed = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Rss:")) {
      if (is_unnamed) kib += std::stoull(line.substr(4));
    } else if (!line.empty() && !std::isupper(static_cast<unsigned char>(line.front()))) {
      is_unnamed = line.ends_with(" (deleted)") && line.find(MORTISE_BINARY_DIR) != std::string::npos;
    }
  }
  return kib * 1024;
}

// Masters in files stay there while they are saved, as they are and converted.
TEST(ModelFolder, ASaveKeepsNoPagesOfMastersInFiles) {
  const ModelConfig config = *make_qwen2_config({.vocab_size = 64, .hidden_size = 256, .intermediate_size = 1024});
  Result<Model> model = Model::random(config, 3, "bfloat16");
  ASSERT_OK(model);
  const Path folder = scratch("masters");
  ASSERT_OK(model->save(default_env(), folder));
  const std::string expected = text_of(folder / "model.safetensors");
  const auto files = std::make_shared<Offload>(Path(MORTISE_BINARY_DIR));
  ASSERT_OK(model->offload_masters(files));
  EXPECT_EQ(pages_of_unnamed_files(), 0U);
  ASSERT_OK(model->save(default_env(), folder));
  EXPECT_EQ(pages_of_unnamed_files(), 0U);
  EXPECT_TRUE(text_of(folder / "model.safetensors") == expected);
  ASSERT_OK(model->save(default_env(), folder, {"bfloat16"}));
  EXPECT_EQ(pages_of_unnamed_files(), 0U);
  const NamedParameter* matrix = model->find_parameter("model.layers.0.mlp.up_proj.weight");
  ASSERT_NE(matrix, nullptr);
  EXPECT_GT(matrix->tensor.sum().item<double>(), -1e9);
  EXPECT_GT(pages_of_unnamed_files(), 0U);  // a reader of the numbers does have them
}

// Loading takes no second copy: under a limit of little more than the parameters themselves it succeeds.
TEST(ModelFolderDeathTest, LoadingTakesNoSecondCopy) {
  const ModelConfig config = *make_qwen2_config({.vocab_size = 24000, .hidden_size = 512, .intermediate_size = 1024});
  const Path folder = scratch("large");
  ASSERT_TRUE(Model::random(config, 3)->save(default_env(), folder).ok());
  const auto bytes = static_cast<uint64_t>(config.num_parameters()) * sizeof(float);
  ASSERT_GT(bytes, uint64_t{90} << 20);
  const auto load_within = [&](double times) {
    std::ifstream status("/proc/self/status");
    uint64_t used_kib = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmData:")) used_kib = std::stoull(line.substr(7));
    }
    at::set_num_threads(1);
    const auto most = static_cast<rlim_t>(used_kib * 1024 + static_cast<uint64_t>(static_cast<double>(bytes) * times));
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) std::exit(3);
    std::exit(Model::load(default_env(), folder).ok() ? 0 : 1);
  };
  EXPECT_EXIT(load_within(1.2), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(load_within(0.8), testing::ExitedWithCode(1), "");  // the limit does bite
}

TEST(ModelFolder, BrokenFoldersAreRefusedByName) {
  expect_load_error(scratch("empty"), "config.json");
  Path folder = broken("qwen2_tied", "no_weights");
  fs::remove(folder / "model.safetensors");
  expect_load_error(folder, "model.safetensors");
  for (const auto& [text, says] :
       {std::pair("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        std::pair("", "model.safetensors: a file of 0 bytes is too short"),
        std::pair("<html>not found</html>", "model.safetensors: this is a web page, not safetensors")}) {
    EXPECT_TRUE(write_file(default_env(), folder / "model.safetensors", text).ok());
    expect_load_error(folder, says);
  }
  folder = broken("qwen2_untied_sharded", "no_shard");
  fs::remove(folder / "model-00002-of-00005.safetensors");
  expect_load_error(folder, "model-00002-of-00005.safetensors");
  expect_load_error(folder, "download the folder again");
  folder = broken("qwen2_untied_sharded", "cut_shard");
  fs::resize_file(folder / "model-00002-of-00005.safetensors",
                  fs::file_size(folder / "model-00002-of-00005.safetensors") - 100);
  expect_load_error(folder, "model-00002-of-00005.safetensors");
  expect_load_error(folder, "fetch or write it again");
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
  expect_load_error(with_config("\"model_type\": \"qwen2\"", "\"model_kind\": \"qwen2\""), "'model_type' is missing");
  expect_load_error(with_config("\"intermediate_size\": 96", "\"intermediate_size\": 95"), "down_proj.weight");
  expect_load_error(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), "model.layers.2.");
  expect_load_error(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), "is not part of this model");
  expect_load_error(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 900"),
                    "more than the weight files");
  expect_load_error(with_config("\"intermediate_size\": 96", "\"intermediate_size\": 1099511627776"),
                    "'intermediate_size'");
}

}  // namespace
}  // namespace mortise
