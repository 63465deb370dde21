// What runs read and write as models: adapters in training, and the dtype and cut of saved weights.
#include <gtest/gtest.h>

#include <cstring>

#include "foundation/formats/safetensors.h"
#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

bool is_there(const Path& path) { return default_env().exists(path); }

constexpr const char* kLora = "model.lora_rank=8 model.lora_alpha=16 actor.optim.lr=2e-2 ";

// Base, adapter and sampler fit together: it learns, the sampler's log-probs are the trainer's, and the first update
// finds no distance to the reference, which is the base.
TEST(ModelFolders, AnAdapterLearns) {
  const TaskFolder task;
  const Outcome outcome = task.mortise(std::string("train run.toml actor.use_kl_loss=true actor.kl_loss_coef=1e-4 ") +
                                       kLora + "trainer.total_training_steps=30");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::vector<Json> rows = rows_of(task.path() / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 30U);
  double early = 0.0, late = 0.0;
  for (size_t i = 0; i < 5; ++i) {
    early += rows[i]["critic/score/mean"].get<double>() / 5;
    late += rows[25 + i]["critic/score/mean"].get<double>() / 5;
  }
  EXPECT_LT(early, 0.5);
  EXPECT_GT(late, early + 0.15);
  for (const Json& row : rows) EXPECT_LT(row["training/rollout_probs_diff_mean"].get<double>(), 1e-6);
  const std::vector<Json> updates = rows_of(task.path() / "out/updates.jsonl");
  EXPECT_LT(updates.front()["kl"].get<double>(), 1e-9);
  EXPECT_GT(updates.back()["kl"].get<double>(), 1e-4);
  // The checkpoint has only the adapter: rank 8, with matrices of 128 and 512.
  const auto adapter =
      SafetensorsFile::open(default_env(), task.path() / "out/global_step_30/huggingface/adapter_model.safetensors");
  ASSERT_TRUE(adapter.ok()) << adapter.error().to_string();
  EXPECT_EQ(adapter->tensors().size(), 3U * 7U * 2U);
  EXPECT_FALSE(is_there(task.path() / "out/global_step_30/huggingface/model.safetensors"));
}

// What the adapter's folder, the merged folder and the run itself say is the same.
TEST(ModelFolders, AnAdapterIsReadMergedAndGoneOnFrom) {
  const TaskFolder task;
  const std::string sft =
      "sft run.toml sft.train_batch_size=16 data.train_files=data/sft.jsonl data.max_response_length=8 ";
  const Outcome outcome = task.mortise(sft + kLora + "sft.total_training_steps=5");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::string adapter = "out/global_step_5/huggingface";
  ASSERT_EQ(task.mortise("model save --model " + adapter + " --out merged").code, 0);
  EXPECT_TRUE(is_there(task.path() / "merged/tokenizer.json"));
  std::vector<std::string> completions;
  for (const std::string& folder : {adapter, std::string("merged")}) {
    const Outcome made = task.mortise("generate --model " + folder +
                                      " --prompts data/val.jsonl --out g.jsonl rollout.temperature=0 "
                                      "rollout.response_length=4 rollout.calculate_log_probs=false");
    ASSERT_EQ(made.code, 0) << made.output;
    completions.push_back(*default_env().read_file(task.path() / "g.jsonl"));
  }
  EXPECT_EQ(completions[0], completions[1]);
  // A run's file that continues the adapter says it too, without --model.
  task.write("continued.toml", "[model]\npath = \"model\"\nlora_adapter_path = \"" + adapter + "\"\n");
  const Outcome continued = task.mortise(
      "generate --config continued.toml --prompts data/val.jsonl --out g.jsonl rollout.temperature=0 "
      "rollout.response_length=4 rollout.calculate_log_probs=false");
  ASSERT_EQ(continued.code, 0) << continued.output;
  EXPECT_EQ(completions[0], *default_env().read_file(task.path() / "g.jsonl"));
  // Another run begins where this one ended.
  const Outcome next = task.mortise(sft +
                                    "actor.optim.lr=2e-2 sft.total_training_steps=1 trainer.default_local_dir=next "
                                    "model.lora_adapter_path=" +
                                    adapter);
  ASSERT_EQ(next.code, 0) << next.output;
  // The merged model gives the same result on the same rows.
  const Outcome whole =
      task.mortise(sft + "model.path=merged sft.total_training_steps=1 trainer.default_local_dir=whole");
  ASSERT_EQ(whole.code, 0) << whole.output;
  const auto first_loss = [&](const char* dir) {
    return rows_of(task.path() / dir / "metrics.jsonl").front()["loss"].get<double>();
  };
  EXPECT_NEAR(first_loss("next"), first_loss("whole"), 1e-5);
  EXPECT_GT(std::abs(first_loss("next") - first_loss("out")), 1e-3);
}

TEST(ModelFolders, AnAdaptersRunIsResumedToTheSameBits) {
  for (const std::string merged : {"false", "true"}) {
    const TaskFolder straight, stopped;
    const std::string settings = std::string("train run.toml actor.use_kl_loss=true trainer.total_training_steps=4 ") +
                                 kLora + "trainer.save_freq=2 trainer.save_merged_lora=" + merged;
    ASSERT_EQ(straight.mortise(settings).code, 0);
    ASSERT_EQ(stopped.mortise(settings).code, 0);
    ASSERT_OK(remove_tree(default_env(), stopped.path() / "out/global_step_4"));
    ASSERT_OK(write_file(default_env(), stopped.path() / "out/latest", "global_step_2\n"));
    const Outcome resumed = stopped.mortise(settings);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    const std::string weights = merged == "true" ? "model.safetensors" : "adapter_model.safetensors";
    for (const std::string& file :
         {"out/global_step_4/huggingface/" + weights, std::string("out/global_step_4/state.safetensors")})
      EXPECT_EQ(hash_of(straight.path() / file), hash_of(stopped.path() / file)) << file;
    // A validation on the way reads the adapter too.
    const Outcome validated = stopped.mortise(settings +
                                              " trainer.val_only=true data.val_files=data/val.jsonl "
                                              "data.val_max_samples=20 --resume out/global_step_2");
    EXPECT_EQ(validated.code, 0) << validated.output;
  }
}

TEST(ModelFolders, WrongAdaptersAreNamed) {
  const TaskFolder task;
  const Outcome unknown = task.mortise("train run.toml model.lora_rank=4 'model.target_modules=[\"c_attn\"]'");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  for (const char* text : {"'c_attn'", "q_proj", "model.target_modules"})
    EXPECT_NE(unknown.output.find(text), std::string::npos) << unknown.output;
  const Outcome none = task.mortise("train run.toml model.lora_adapter_path=nowhere");
  EXPECT_NE(none.code, 0);
  EXPECT_NE(none.output.find("nowhere"), std::string::npos) << none.output;
  const Outcome plan = task.mortise("train run.toml --dry-run model.lora_rank=4");
  EXPECT_EQ(plan.code, 0) << plan.output;
  EXPECT_NE(plan.output.find("trained: an adapter of"), std::string::npos) << plan.output;
}

// Nothing learnt (a rate of 0): the same bytes as were read, in every layout.
TEST(ModelFolders, UntrainedWeightsAreSavedAsTheyWere) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise("model save --model model --out half --dtype bfloat16 --max-shard-size 200KB").code, 0);
  const std::string index = "model.safetensors.index.json";
  ASSERT_TRUE(is_there(task.path() / "half" / index));
  const Outcome outcome = task.mortise(
      "train run.toml model.path=half actor.optim.lr=0 trainer.total_training_steps=1 trainer.save_dtype=stored");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Path saved = task.path() / "out/global_step_1/huggingface";
  size_t num_files = 0;
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, default_env().list_dir(task.path() / "half"));
  for (const std::string& name : names) {
    EXPECT_EQ(hash_of(saved / name), hash_of(task.path() / "half" / name)) << name;
    ++num_files;
  }
  EXPECT_GT(num_files, 6U);
  const Outcome plain =
      task.mortise("train run.toml actor.optim.lr=0 trainer.total_training_steps=1 trainer.default_local_dir=plain");
  ASSERT_EQ(plain.code, 0) << plain.output;
  for (const char* name : {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"})
    EXPECT_EQ(hash_of(task.path() / "plain/global_step_1/huggingface" / name), hash_of(task.path() / "model" / name))
        << name;
}

// A dtype that rounds is for readers of the folder; the run itself loses nothing.
TEST(ModelFolders, ARoundedCheckpointIsResumedToTheSameBits) {
  const TaskFolder straight, stopped;
  const std::string settings =
      "train run.toml trainer.total_training_steps=4 trainer.save_freq=2 trainer.save_dtype=bfloat16 "
      "trainer.max_shard_size=300KB";
  ASSERT_EQ(straight.mortise(settings).code, 0);
  ASSERT_EQ(stopped.mortise(settings).code, 0);
  ASSERT_OK(remove_tree(default_env(), stopped.path() / "out/global_step_4"));
  ASSERT_OK(write_file(default_env(), stopped.path() / "out/latest", "global_step_2\n"));
  const Outcome resumed = stopped.mortise(settings);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const std::string folder = "out/global_step_4/huggingface/";
  EXPECT_FALSE(is_there(straight.path() / (folder + "model.safetensors")));
  for (const std::string& file :
       {std::string("out/global_step_4/state.safetensors"), folder + "model.safetensors.index.json",
        folder + "model-00001-of-00006.safetensors", folder + "config.json"})
    EXPECT_EQ(hash_of(straight.path() / file), hash_of(stopped.path() / file)) << file;
  const auto shard =
      SafetensorsFile::open(default_env(), straight.path() / (folder + "model-00001-of-00006.safetensors"));
  ASSERT_TRUE(shard.ok()) << shard.error().to_string();
  for (const TensorView& tensor : shard->tensors()) EXPECT_EQ(tensor.dtype, DType::kBF16) << tensor.name;
  const Outcome generated = straight.mortise("generate --model " + folder +
                                             " --prompts data/val.jsonl --out g.jsonl rollout.response_length=4");
  EXPECT_EQ(generated.code, 0) << generated.output;
  const Outcome wrong = straight.mortise("train run.toml trainer.max_shard_size=5TB");
  EXPECT_EQ(wrong.code, 2) << wrong.output;
  EXPECT_NE(wrong.output.find("trainer.max_shard_size"), std::string::npos) << wrong.output;
}

// The format of the folders does not matter to a resume: a run may continue with another one, and gives the same bits.
TEST(ModelFolders, TheFormatOfCheckpointsMayChangeOnAResume) {
  const TaskFolder task("--tiny");
  ASSERT_EQ(task.mortise("model save --model model --out half --dtype bfloat16").code, 0);
  const auto settings = [](const std::string& dtype, const std::string& out) {
    return "train run.toml model.path=half actor.optim.lr=2e-2 trainer.total_training_steps=4 trainer.save_freq=2 "
           "data.val_files=data/val.jsonl data.val_max_samples=20 trainer.save_dtype=" +
           dtype + " trainer.default_local_dir=" + out;
  };
  for (const char* dtype : {"train", "bfloat16", "stored"}) {
    const Outcome outcome = task.mortise(settings(dtype, dtype));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
  }
  const std::pair<std::string, std::string> changes[] = {
      {"train", "bfloat16"}, {"bfloat16", "train"}, {"train", "stored"}, {"stored", "train"}};
  for (const auto& [from, to] : changes) {
    const std::string name = from + "_" + to;
    ASSERT_EQ(run("cp -r " + from + " " + name + " && rm -r " + name + "/global_step_4 && echo global_step_2 > " +
                      name + "/latest",
                  task.path())
                  .code,
              0);
    const Outcome resumed = task.mortise(settings(to, name));
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    for (const char* file : {"state.safetensors", "huggingface/model.safetensors", "huggingface/config.json"})
      EXPECT_EQ(hash_of(task.path() / name / "global_step_4" / file),
                hash_of(task.path() / to / "global_step_4" / file))
          << name << " " << file;
  }
  // The validation uses the checkpoint's weights, not those of model.path, whatever the settings now say.
  const auto validated = [&](const std::string& arguments, const std::string& dump) {
    const Outcome outcome = task.mortise(arguments + " trainer.val_only=true trainer.validation_data_dir=" + dump);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    std::string out;
    const std::vector<std::string> names = default_env().list_dir(task.path() / dump).value();
    for (const std::string& name : names) {
      for (const Json& row : rows_of(task.path() / dump / name)) out += row["output"].get<std::string>() + "\n";
    }
    return out;
  };
  const std::string begun = validated(settings("train", "begun"), "val_begun");
  const std::string rounded = validated(settings("bfloat16", "train") + " --resume train/global_step_4", "val_a");
  const std::string exact = validated(settings("train", "bfloat16") + " --resume bfloat16/global_step_4", "val_b");
  EXPECT_EQ(rounded, exact);
  EXPECT_NE(exact, begun);
}

// The kernels and their reference operations, from the command line.
TEST(ModelFolders, LayersCanBeForced) {
  const TaskFolder task;
  const std::vector<int64_t> ids = {3, 4, 5, 6, 7, 8}, mask(6, 1);
  const TensorView views[] = {view_of("in.input_ids", std::span<const int64_t>(ids), {2, 3}),
                              view_of("in.attention_mask", std::span<const int64_t>(mask), {2, 3})};
  ASSERT_OK(write_safetensors_file(default_env(), task.path() / "in.safetensors", views));
  const std::string logprob = "model logprob --model model --inputs in.safetensors --outputs ";
  std::vector<std::vector<float>> logits;
  for (const std::string layers : {"fast", "plain"}) {
    const Outcome outcome = task.mortise(logprob + layers + ".safetensors --layers " + layers);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    const auto file = SafetensorsFile::open(default_env(), task.path() / (layers + ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    const TensorView* view = file->find("logits");
    ASSERT_NE(view, nullptr);
    logits.emplace_back(view->bytes.size() / sizeof(float));
    std::memcpy(logits.back().data(), view->bytes.data(), view->bytes.size());
  }
  ASSERT_EQ(logits[0].size(), 2U * 3U * 14U);
  for (size_t i = 0; i < logits[0].size(); ++i) EXPECT_NEAR(logits[0][i], logits[1][i], 1e-5);
  const Outcome wrong = task.mortise(logprob + "x.safetensors --layers quick");
  EXPECT_EQ(wrong.code, 2) << wrong.output;
  EXPECT_NE(wrong.output.find("use fast or plain"), std::string::npos) << wrong.output;
}

}  // namespace
}  // namespace mortise::test
