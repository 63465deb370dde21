// Models that are opened without their matrices (Model::open): each rank reads them part by part and keeps what it has of
// them, with the bits of a rank that reads all of it first; and it never has more memory than that and one part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "layer_variants.h"
#include "model/tensor/storage_memory.h"
#include "small_config.h"
#include "support/counting_allocator.h"
#include "support/golden_models.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::golden_model;
using test::golden_models;
using test::on_ranks;
using testing::AllOf;
using testing::HasSubstr;

enum class Reading { kAtOnce, kByParts };

// Which adapter of a model is trained, if any: a new one, or that of a folder.
struct Adapter {
  std::optional<LoraChoice> choice = {};
  std::optional<Path> folder = {};
};

// A model of a folder as a rank of the mesh has it.
struct SharedModel {
  SharedModel(const Path& folder, const std::string& dtype, const Adapter& adapter, const Mesh& mesh,
              Communicator& ranks, Reading reading)
      : model((reading == Reading::kAtOnce ? Model::load(default_env(), folder, dtype)
                                           : Model::open(default_env(), folder, dtype))
                  .value()) {
    if (adapter.choice) EXPECT_OK(model.train_lora(*adapter.choice, 4));
    if (adapter.folder) EXPECT_OK(model.train_lora(default_env(), *adapter.folder));
    if (mesh.tensor_size > 1) model.split_layers(std::make_shared<TensorGroup>(ranks, mesh.tensor_size));
    TestPolicy::spread_model(model, {&ranks, mesh.zero_stage}, /*keeps_base=*/false, mesh.window_bytes);
    EXPECT_OK(model.read_parts());
  }
  Model model;
};

struct Numbers {
  std::string name;
  at::Tensor tensor;  // undefined: no memory
};

// kAlways: what a rank has between passes, and what the ranks have together. kGathered: only the latter. Between passes,
// what a start left of the base may be there or not, as rows of a matrix that an adapter trains in part.
enum class Compared { kAlways, kGathered };

std::vector<Numbers> numbers_of(const Model& model, Compared compared) {
  std::vector<Numbers> out;
  std::string when = "alone";
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    out.push_back({when + ": " + name, has_memory(tensor) ? tensor.detach().clone() : at::Tensor()});
  };
  const ModelPart* const part = model.model_part();
  const auto add_rank = [&] {
    for (const NamedParameter& one : model.trainable()) add(one.name, one.tensor);
    for (const NamedParameter& one : part != nullptr ? part->parameters() : model.parameters())
      add(one.name, one.tensor);
    const DecoderWeights& weights = part != nullptr ? part->weights() : model.weights();
    for (size_t layer = 0; layer < weights.rounded.size(); ++layer) {
      for (const at::Tensor& copy : copies_of_layer(weights, layer))
        add("copies of layer " + std::to_string(layer), copy);
    }
  };
  if (compared == Compared::kAlways) add_rank();
  if (const WeightShards* const shards = shards_of(model); shards != nullptr) {
    for (size_t i = 0; i < shards->units().parts.size(); ++i) {
      if (!shards->units().parts[i].empty()) add("part " + std::to_string(i), shards->numbers(static_cast<int64_t>(i)));
    }
  }
  const auto whole = WholeWeights::gather({&model});
  EXPECT_OK(whole);
  when = "gathered";
  add_rank();
  for (const NamedParameter& one : model.parameters()) add("whole " + one.name, one.tensor);
  return out;
}

void expect_same_numbers(const Model& got, const Model& expected, Compared compared) {
  const std::vector<Numbers> a = numbers_of(got, compared), b = numbers_of(expected, compared);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].tensor.defined(), b[i].tensor.defined()) << a[i].name;
    if (a[i].tensor.defined()) ASSERT_TRUE(a[i].tensor.equal(b[i].tensor)) << a[i].name;
  }
}

constexpr Mesh kSpread{.num_ranks = 2, .zero_stage = 3}, kSplit{.num_ranks = 2, .tensor_size = 2},
    kBoth{.num_ranks = 4, .zero_stage = 3, .tensor_size = 2};

void expect_bits_of_reading_at_once(const Path& folder, const std::string& dtype, const Adapter& adapter,
                                    Compared compared = Compared::kAlways) {
  const ModelConfig config = read_model_folder_config(default_env(), folder).value();
  for (const Mesh& mesh : {kSpread, kSplit, kBoth}) {
    if (mesh.tensor_size > 1 && !can_split_layers(config, mesh.tensor_size)) continue;
    SCOPED_TRACE(name_of(mesh) + ", " + dtype);
    on_ranks(mesh.num_ranks, [&](Communicator& ranks) {
      const SharedModel at_once(folder, dtype, adapter, mesh, ranks, Reading::kAtOnce);
      const SharedModel by_parts(folder, dtype, adapter, mesh, ranks, Reading::kByParts);
      expect_same_numbers(by_parts.model, at_once.model, compared);
    });
  }
}

TEST(ReadParts, EveryFamilyHasTheBitsOfReadingAtOnce) {
  const std::vector<std::string> names = golden_models("config.json");
  ASSERT_GE(names.size(), 20U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    for (const char* const dtype : {"float32", "bfloat16"})
      expect_bits_of_reading_at_once(golden_model(name), dtype, {});
  }
}

TEST(ReadParts, EveryKindOfAdapterHasTheBitsOfReadingAtOnce) {
  const LoraChoice plain{.rank = 2, .alpha = 4.0};
  std::vector<LoraChoice> choices(7, plain);
  choices[1].use_dora = true;
  choices[2].init = LoraInit::kPissa;
  choices[3].target_modules = {"q_proj", "down_proj"};
  choices[3].bias = LoraBias::kAll;
  choices[4].target_modules = {"q_proj", "down_proj"};
  choices[4].modules_to_save = {"v_proj", "embed_tokens"};
  choices[5].target_parameters = {"mlp.experts.gate_up_proj", "mlp.gate.weight"};
  choices[6].init = LoraInit::kOlora;
  choices[6].use_dora = true;
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(i);
    const Path folder = golden_model(i == 5 ? "qwen3_moe" : i == 3 ? "qwen2_tied" : "qwen2_untied_sharded");
    for (const char* const dtype : {"float32", "bfloat16"}) expect_bits_of_reading_at_once(folder, dtype, {choices[i]});
  }
}

TEST(ReadParts, WhatAnAdapterTrainsAsAWholeHasTheBitsOfReadingAtOnce) {
  const std::vector<std::vector<std::string>> modules{
      {"lm_head"}, {"q_proj", "o_proj", "up_proj", "down_proj"}, {"embed_tokens", "lm_head", "input_layernorm"}};
  for (const std::vector<std::string>& saved : modules) {
    LoraChoice choice{.rank = 2, .alpha = 4.0, .target_modules = {"k_proj", "gate_proj"}};
    choice.modules_to_save = saved;
    for (const bool has_dora : {false, true}) {
      SCOPED_TRACE(saved.front() + (has_dora ? ", DoRA" : ""));
      choice.use_dora = has_dora;
      for (const char* const dtype : {"float32", "bfloat16"})
        expect_bits_of_reading_at_once(golden_model("qwen2_untied_sharded"), dtype, {choice});
    }
  }
}

// The numbers of a start come from the base, and those of the adapter from its folder.
TEST(ReadParts, AContinuedAdapterHasTheBitsOfReadingAtOnce) {
  const test::TempDir dir;
  const Path base = golden_model("qwen2_untied_sharded");
  std::vector<LoraChoice> choices(5, {.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "down_proj"}});
  choices[0].modules_to_save = {"v_proj", "embed_tokens"};
  choices[1].init = LoraInit::kPissa;
  choices[2].init = LoraInit::kOlora;
  choices[2].use_dora = true;
  choices[3].init = LoraInit::kPissa;
  choices[3].modules_to_save = {"up_proj", "lm_head"};
  choices[4].init = LoraInit::kPissa;
  choices[4].modules_to_save = {"v_proj", "lm_head"};  // next to q_proj in one matrix
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(i);
    const Path folder = dir.path() / std::to_string(i);
    Model trained = Model::load(default_env(), base).value();
    ASSERT_OK(trained.train_lora(choices[i], 4));
    randomize(trained.trainable());
    ASSERT_OK(trained.save(default_env(), folder, {.lora = LoraSave::kApart, .base_model = base.string()}));
    // As PEFT has it: a save of ours names the start of A and B no more.
    std::string config = default_env().read_file(folder / "adapter_config.json").value();
    const std::string init = choices[i].init == LoraInit::kPissa ? "\"pissa\"" : "\"olora\"";
    if (changes_base(choices[i].init)) {
      const size_t at = config.find("\"init_lora_weights\": true");
      ASSERT_NE(at, std::string::npos);
      config.replace(at, 25, "\"init_lora_weights\": " + init);
      ASSERT_OK(write_file_atomic(default_env(), folder / "adapter_config.json", config));
    }
    const Compared compared = i == 4 ? Compared::kGathered : Compared::kAlways;
    for (const char* const dtype : {"float32", "bfloat16"}) {
      expect_bits_of_reading_at_once(base, dtype, {{}, folder}, compared);
      expect_bits_of_reading_at_once(folder, dtype, {});  // merged
    }
  }
}

// A start that is continued reads the common numbers of the checkpoint's folder too.
TEST(ReadParts, NumbersComeFromTheFolderThatWasNamedLast) {
  const test::TempDir folder;
  const Path first = golden_model("qwen2_tied");
  Model other = Model::load(default_env(), first).value();
  randomize(other.parameters());
  ASSERT_OK(other.save(default_env(), folder.path() / "other"));
  on_ranks(2, [&](Communicator& ranks) {
    Model model = Model::open(default_env(), first, "float32").value();
    ASSERT_OK(model.read_weights(default_env(), folder.path() / "other"));
    const auto shards = WeightShards::spread(model, ranks, ShardCut::kBlocks);
    ASSERT_OK(shards->status());
    const auto whole = WholeWeights::gather({&model});
    for (size_t i = 0; i < other.parameters().size(); ++i)
      EXPECT_TRUE(model.parameters()[i].tensor.equal(other.parameters()[i].tensor)) << model.parameters()[i].name;
  });
}

// As a file of another model that is put in its place between two parts.
TEST(ReadParts, AFileThatChangesIsRefused) {
  const test::TempDir folder;
  const Path copy = folder.path() / "model", file = copy / "model.safetensors";
  ASSERT_OK(Model::load(default_env(), golden_model("qwen2_tied")).value().save(default_env(), copy));
  Model model = Model::open(default_env(), copy, "float32").value();
  ASSERT_OK(model.read_part(0));
  std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
  EXPECT_THAT(test::error_of(model.read_part(1)), AllOf(HasSubstr(copy.string()), HasSubstr("were changed")));
}

// A file that cannot be read is an error of the rank, with its name.
TEST(ReadParts, AFileThatIsGoneIsNamed) {
  const test::TempDir folder;
  const Path copy = folder.path() / "model";
  ASSERT_OK(Model::load(default_env(), golden_model("qwen2_tied")).value().save(default_env(), copy));
  on_ranks(2, [&](Communicator& ranks) {
    Model model = Model::open(default_env(), copy, "float32").value();
    ASSERT_OK(ranks.barrier("opened"));
    if (ranks.rank() == 0) std::filesystem::remove(copy / "model.safetensors");
    ASSERT_OK(ranks.barrier("removed"));
    const auto shards = WeightShards::spread(model, ranks, ShardCut::kBlocks);
    ASSERT_FALSE(shards->status().ok());
    EXPECT_NE(shards->status().error().to_string().find(copy.string()), std::string::npos);
  });
}

// Ranks start one after another, so that the counts of each are its own.
void expect_memory_for_one_part(const Path& folder, const Mesh& mesh, const std::string& dtype,
                                const Adapter& adapter) {
  SCOPED_TRACE(name_of(mesh) + ", " + dtype + (adapter.choice ? ", an adapter" : ""));
  CountingAllocator& tensors = CountingAllocator::install();
  on_ranks(mesh.num_ranks, [&](Communicator& ranks) {
    for (int rank = 0; rank < mesh.num_ranks; ++rank) {
      ASSERT_OK(ranks.barrier("the next rank"));
      if (ranks.rank() != rank) continue;
      const int64_t before = tensors.bytes();
      tensors.reset_peak();
      const SharedModel shared(folder, dtype, adapter, mesh, ranks, Reading::kByParts);
      const int64_t own = tensors.bytes() - before, peak = tensors.peak() - before;
      int64_t whole = 0;
      for (const NamedParameter& one : shared.model.stored_parameters())
        whole += static_cast<int64_t>(one.tensor.nbytes());
      // The rank's part of a layer is next to it before it is spread. Vectors in the making are small.
      const int64_t part = largest_part(shared.model), share = mesh.zero_stage > 0 ? part / mesh.tensor_size : 0;
      EXPECT_LE(peak, own + part + (mesh.tensor_size > 1 ? share : 0) + part / 8) << "own " << own;
      EXPECT_LT(peak, whole) << "what loading at once takes at least";
    }
    ASSERT_OK(ranks.barrier("all"));
  });
}

TEST(ReadParts, ARankNeverHasMoreThanItsNumbersAndOnePart) {
  const test::TempDir folder;
  ASSERT_OK(Model::random(many_layers(), 5).value().save(default_env(), folder.path() / "model"));
  const Path model = folder.path() / "model";
  const Mesh spread{.num_ranks = 4, .zero_stage = 3}, split{.num_ranks = 4, .tensor_size = 2};
  for (const char* const dtype : {"float32", "bfloat16"}) {
    for (const Mesh& mesh : {spread, split, kBoth}) expect_memory_for_one_part(model, mesh, dtype, {});
  }
  const LoraChoice adapter{.rank = 1, .alpha = 2.0, .target_modules = {"q_proj"}};
  for (const Mesh& mesh : {spread, kBoth}) expect_memory_for_one_part(model, mesh, "float32", {adapter});
  LoraChoice started{.rank = 1, .alpha = 2.0, .target_modules = {"gate_proj", "up_proj", "down_proj"}};
  started.init = LoraInit::kOlora;
  expect_memory_for_one_part(model, kBoth, "float32", {started});
  LoraChoice saves{.rank = 1, .alpha = 2.0, .target_modules = {"q_proj"}, .modules_to_save = {"o_proj"}};
  for (const Mesh& mesh : {spread, split}) expect_memory_for_one_part(model, mesh, "float32", {saves});
}

}  // namespace
}  // namespace mortise
