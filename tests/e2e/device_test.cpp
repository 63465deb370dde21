// Whole runs with model.device: by the code of a device on the CPU they learn what they learn without it, and are resumed
// to the same bits. A machine without a GPU, and settings that a device cannot do, are named before anything is loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device_runs.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Every number of every step but the times; float64 hides no fault in the last bits of float32.
void expect_same_numbers(const Path& got, const Path& want, double tolerance) {
  const std::vector<Json> a = rows_of(got / "metrics.jsonl"), b = rows_of(want / "metrics.jsonl");
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GE(b.size(), 3U);
  for (size_t i = 0; i < b.size(); ++i) {
    for (const auto& [name, value] : b[i].items()) {
      if (is_time(name) || !value.is_number()) continue;
      const double expected = value.get<double>();
      EXPECT_NEAR(number_of(a[i], name), expected, tolerance * std::max(1.0, std::abs(expected))) << name << " " << i;
    }
  }
}

// One run on the CPU and one with the code of a device have the same numbers.
void expect_device_learns_as_cpu(const TaskFolder& task, const std::string& settings) {
  SCOPED_TRACE(settings);
  const std::string both = kFew + "model.dtype=float64 " + settings + " ";
  const Outcome cpu = task.mortise(both + "trainer.default_local_dir=cpu");
  ASSERT_EQ(cpu.code, 0) << cpu.output;
  const Outcome device = task.mortise(both + kAsDevice);
  ASSERT_EQ(device.code, 0) << device.output;
  EXPECT_THAT(device.output, HasSubstr(kTold));
  EXPECT_THAT(device.output, HasSubstr("device memory: about "));
  expect_same_numbers(task.path() / "out", task.path() / "cpu", 1e-8);
}

TEST(DeviceRuns, LearnWhatTheCpuLearns) {
  for (const char* settings : {"", "model.lora_rank=4 model.lora_dropout=0.1 actor.optim.lr=0.02"}) {
    const TaskFolder of_three_layers;
    expect_device_learns_as_cpu(of_three_layers, settings);
  }
  for (const char* settings :
       {"actor.ppo_epochs=2 algorithm.adv_estimator=gae", "actor.policy_loss.loss_mode=gspo trainer.mode=one_step_off",
        "model.lora_rank=2 model.use_dora=true 'model.modules_to_save=[\"lm_head\"]' "
        "ref.sync_steps=2 actor.optim.lr=0.02",
        "model.lora_rank=2 model.init_lora_weights=pissa algorithm.adv_estimator=gae "
        "critic.model.lora_rank=2",
        "actor.kl_loss_type=full actor.optim.optimizer=muon",
        "teacher.path=model teacher.loss_coef=0.5 teacher.divergence_beta=0.3 actor.optim.optimizer=sgd",
        "algorithm.adv_estimator=optimal_token_baseline actor.optim.optimizer=lion",
        "rollout.top_k=5 rollout.repetition_penalty=1.2 rollout.filtered_log_probs=true "
        "actor.optim.optimizer=adafactor"}) {
    const TaskFolder task("--tiny");
    expect_device_learns_as_cpu(task, settings);
  }
}

// Reward models compute there too, in float32 whatever the policy is.
TEST(DeviceRuns, RewardModelsScoreThere) {
  const TaskFolder task("--tiny");
  const std::string model = (Path(MORTISE_SOURCE_DIR) / "tests/golden/reward_model/model").string();
  const std::string settings =
      kFew + "model.dtype=float64 ~reward.0.pattern reward.0.use=reward_model reward.0.model=" + model +
      " reward.0.transform=sigmoid trainer.total_training_steps=1 ";
  const Outcome cpu = task.mortise(settings + "trainer.default_local_dir=cpu");
  ASSERT_EQ(cpu.code, 0) << cpu.output;
  const Outcome device = task.mortise(settings + kAsDevice);
  ASSERT_EQ(device.code, 0) << device.output;
  EXPECT_THAT(device.output,
              testing::ContainsRegex("reward model .*model: [0-9]+ parameters.*, on (cuda|the CPU, with)"));
  const Json got = rows_of(task.path() / "out/metrics.jsonl").at(0);
  const Json want = rows_of(task.path() / "cpu/metrics.jsonl").at(0);
  for (const char* name : {"critic/score/mean", "critic/score/max", "critic/score/min"})
    EXPECT_NEAR(number_of(got, name), number_of(want, name), 1e-5) << name;
  EXPECT_GT(number_of(want, "critic/score/max"), number_of(want, "critic/score/min"));
}

// Routing replay: R2 replays the experts of training passes, R3 those of sampling.
TEST(DeviceRuns, MixturesOfExpertsReplayTheirRouting) {
  for (const std::string mode : {"R2", "R3"}) {
    const TaskFolder task("--experts");
    expect_device_learns_as_cpu(task, "actor.ppo_epochs=2 actor.router_replay.mode=" + mode);
  }
}

// Adapters of experts and of the router: training, sampling with merged experts, and the adapter's folder.
TEST(DeviceRuns, AdaptersOfExpertsLearnWhatTheCpuLearns) {
  const TaskFolder task("--experts");
  expect_device_learns_as_cpu(
      task,
      "model.lora_rank=2 actor.optim.lr=0.02 "
      "'model.target_parameters=[\"mlp.experts.gate_up_proj\", \"mlp.experts.down_proj\", \"mlp.gate.weight\"]'");
}

TEST(DeviceRuns, AResumeHasTheSameBits) {
  expect_resumed_bits(kFew + kAsDevice, 2, 3);
  expect_resumed_bits(kFew + kAsDevice + "model.dtype=bfloat16", 2, 3);
  expect_resumed_bits(kFew + kAsDevice + "model.dtype=bfloat16 actor.optim.master_weights=false", 2, 3);
  expect_resumed_bits(kFew + kAsDevice +
                          "model.dtype=bfloat16 model.lora_rank=4 model.lora_dropout=0.1 "
                          "trainer.save_merged_lora=true",
                      2, 3);
}

TEST(DeviceRuns, SupervisedRunsAndValidations) {
  const TaskFolder task;
  const std::string sft =
      "sft run.toml data.train_files='[\"data/sft.jsonl\"]' data.max_response_length=8 "
      "sft.total_training_steps=4 sft.train_batch_size=8 model.dtype=float64 trainer.logger='[]' ";
  const Outcome cpu = task.mortise(sft + "trainer.default_local_dir=cpu");
  ASSERT_EQ(cpu.code, 0) << cpu.output;
  const Outcome device = task.mortise(sft + kAsDevice);
  ASSERT_EQ(device.code, 0) << device.output;
  expect_same_numbers(task.path() / "out", task.path() / "cpu", 1e-8);
  const auto eval = [&](const std::string& settings) {
    const Outcome outcome = task.mortise(
        "eval run.toml --json data.val_files='[\"data/val.jsonl\"]' model.path=out/global_step_4/huggingface "
        "model.dtype=float64 " +
        settings + "2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return parse_json(outcome.output, "eval").value();
  };
  const Json scored = eval(kAsDevice), plain = eval("");
  EXPECT_GE(plain.size(), 2U);
  for (const auto& [name, value] : plain.items()) {
    if (is_time(name) || !value.is_number()) continue;
    EXPECT_NEAR(number_of(scored, name), value.get<double>(), 1e-8) << name;
  }
}

// `mortise generate`: the same tokens, from a model's folder, from an adapter's, and for the settings of a run's file.
TEST(DeviceRuns, GenerateGivesTheTokensOfTheCpu) {
  const TaskFolder task;
  ASSERT_EQ(run("head -n 10 data/val.jsonl > few.jsonl", task.path()).code, 0);
  ASSERT_EQ(task.mortise(kFew + "model.lora_rank=4 actor.optim.lr=0.02").code, 0);
  const auto generate = [&](const std::string& settings, const std::string& out) {
    const Outcome outcome = task.mortise("generate --prompts few.jsonl --json --out " + out + " rollout.n=3 " +
                                         settings + " 2>" + out + ".log");
    EXPECT_EQ(outcome.code, 0) << outcome.output << default_env().read_file(task.path() / (out + ".log")).value();
    return parse_json(outcome.output, "generate").value()["path"].get<std::string>();
  };
  for (const std::string settings :
       {"--model model rollout.response_length=6", "--model out/global_step_3/huggingface rollout.top_p=0.8",
        "--config run.toml model.dtype=float64 rollout.max_num_batched_tokens=5",
        "--config run.toml rollout.temperature=0 rollout.top_log_probs=2"}) {
    EXPECT_THAT(generate(settings, "cpu.jsonl"), Not(StartsWith("device")));
    EXPECT_THAT(generate(settings + " " + kAsDevice, "device.jsonl"), StartsWith("device"));
    const auto want = rows_of(task.path() / "cpu.jsonl"), got = rows_of(task.path() / "device.jsonl");
    ASSERT_EQ(got.size(), want.size());
    ASSERT_EQ(want.size(), 10U);
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t s = 0; s < 3; ++s) {
        const Json &a = got[i]["completions"][s], &b = want[i]["completions"][s];
        EXPECT_EQ(a["token_ids"], b["token_ids"]) << settings << " " << i;
        ASSERT_EQ(a["log_probs"].size(), b["log_probs"].size());
        for (size_t t = 0; t < b["log_probs"].size(); ++t)
          EXPECT_NEAR(a["log_probs"][t].get<double>(), b["log_probs"][t].get<double>(), 1e-4) << settings;
      }
    }
  }
  EXPECT_THAT(default_env().read_file(task.path() / "device.jsonl.log").value(), HasSubstr(kTold));
}

// Settings that sampling reads and a device cannot have are named. Those of training have no effect and are not.
TEST(DeviceRuns, GenerateAndServeRefuseWhatADeviceCannotDo) {
  const TaskFolder task;
  const std::string generate = "generate --config run.toml --prompts data/val.jsonl --out g.jsonl " + kAsDevice;
  for (const std::string& command : {generate + "rollout.dtype=bfloat16", generate + "rollout.kernels=base",
                                     "serve --model model rollout.deterministic=true " + kAsDevice}) {
    const Outcome outcome = task.mortise(command);
    EXPECT_EQ(outcome.code, 2) << command << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("cannot do yet")) << command;
  }
  const Outcome unknown =
      task.mortise("generate --model model --prompts data/val.jsonl --out g.jsonl model.device=gpu");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("choose auto, cpu, cuda, cuda:N or cpu-as-device"));
  task.write("trained.toml", "base = \"run.toml\"\n[actor.optim]\noptimizer = \"adamw_8bit\"\noffload = \"file\"\n");
  const Outcome trained = task.mortise(
      "generate --config trained.toml --prompts data/val.jsonl --out g.jsonl rollout.response_length=2 " + kAsDevice);
  EXPECT_EQ(trained.code, 0) << trained.output;
}

// What a resume compares is where the models are, not the text of the key.
TEST(DeviceRuns, AResumeNeedsTheSameKindOfDevice) {
  const TaskFolder task;
  ASSERT_EQ(task.mortise(kFew).code, 0);
  const Outcome other = task.mortise(kFew + kAsDevice);
  EXPECT_EQ(other.code, 3) << other.output;
  EXPECT_THAT(other.output, HasSubstr(std::string("model.device: where the models learn and sample, now ") +
                                      (tests_gpu() ? "a GPU" : "cpu-as-device")));
  EXPECT_EQ(task.mortise(kFew + kAsDevice + "--allow-change").code, 0);
}

// The states of both optimizers and the reference in files: the same numbers, and a resume may change its mind.
TEST(DeviceRuns, NumbersInFilesAreTheSame) {
  for (const char* settings : {"algorithm.adv_estimator=gae ", "model.dtype=bfloat16 actor.optim.optimizer=muon ",
                               "ref.sync_steps=1 model.dtype=bfloat16 "}) {
    const TaskFolder task("--tiny");
    const std::string run = kFew + kAsDevice + settings;
    const Outcome memory = task.mortise(run + "trainer.default_local_dir=memory");
    ASSERT_EQ(memory.code, 0) << memory.output;
    const std::string offloads =
        "actor.optim.offload=file critic.optim.offload=file ref.offload=file trainer.offload_dir=" +
        std::string(MORTISE_BINARY_DIR) + " ";
    const Outcome files = task.mortise(run + offloads + "trainer.total_training_steps=2");
    ASSERT_EQ(files.code, 0) << files.output;
    const Outcome resumed = task.mortise(run);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    expect_same_numbers(task.path() / "out", task.path() / "memory", 0.0);
  }
}

// The states of both optimizers leave the device while the run samples: the same numbers, also after a resume.
TEST(DeviceRuns, StatesThatLeaveWhileItSamplesAreTheSame) {
  for (const char* settings : {"algorithm.adv_estimator=gae ", "model.dtype=bfloat16 actor.optim.optimizer=muon ",
                               "model.dtype=bfloat16 algorithm.adv_estimator=gae ref.sync_steps=1 "}) {
    const TaskFolder task("--tiny");
    const std::string run = kFew + kAsDevice + settings;
    const Outcome stay = task.mortise(run + "trainer.default_local_dir=memory");
    ASSERT_EQ(stay.code, 0) << stay.output;
    const std::string leave =
        "actor.optim.offload=while_sampling critic.optim.offload=while_sampling rollout.sleep_while_training=true ";
    const Outcome half = task.mortise(run + leave + "trainer.total_training_steps=2");
    ASSERT_EQ(half.code, 0) << half.output;
    const Outcome resumed = task.mortise(run + leave);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    for (const Json& row : rows_of(task.path() / "out/metrics.jsonl"))
      EXPECT_GT(row["timing_s/offload_optimizer"].get<double>(), 0.0);
    for (const Json& row : rows_of(task.path() / "memory/metrics.jsonl"))
      EXPECT_FALSE(row.contains("timing_s/offload_optimizer"));
    expect_same_numbers(task.path() / "out", task.path() / "memory", 0.0);
  }
}

// Runs that sample during updates need the state there, and runs on the CPU have no other memory.
TEST(DeviceRuns, StatesThatLeaveNeedStepsWhichOnlySampleAndADevice) {
  const TaskFolder task;
  const std::string leave = "train run.toml --dry-run actor.optim.offload=while_sampling model.device=";
  const Outcome ahead = task.mortise(leave + "cpu-as-device trainer.mode=one_step_off");
  EXPECT_EQ(ahead.code, 2) << ahead.output;
  EXPECT_THAT(ahead.output, HasSubstr("but 'actor.optim.offload' is while_sampling"));
  const std::string of_critic =
      "train run.toml --dry-run critic.optim.offload=while_sampling trainer.mode=one_step_off " + kAsDevice;
  const Outcome without = task.mortise(of_critic);
  EXPECT_EQ(without.code, 0) << "there is no critic\n" << without.output;
  const Outcome with = task.mortise(of_critic + "algorithm.adv_estimator=gae");
  EXPECT_EQ(with.code, 2) << with.output;
  EXPECT_THAT(with.output, HasSubstr("but 'critic.optim.offload' is while_sampling"));
  const Outcome cpu = task.mortise(leave + "cpu");
  EXPECT_EQ(cpu.code, 0) << cpu.output;
  EXPECT_THAT(cpu.output, HasSubstr("while_sampling moves numbers of a GPU"));
  const Outcome awake = task.mortise(leave + "auto");
  EXPECT_EQ(awake.code, 0) << awake.output;
  EXPECT_THAT(awake.output, HasSubstr("set rollout.sleep_while_training = true as well"));
  const Outcome asleep = task.mortise(leave + "auto rollout.sleep_while_training=true");
  EXPECT_EQ(asleep.code, 0) << asleep.output;
  EXPECT_THAT(asleep.output, Not(HasSubstr("gives no room")));
}

// What a device cannot do yet, by the name of the setting and before the model is looked for. Settings of a critic or a
// reference count only if the run has one, which its plugins say.
TEST(DeviceRuns, WhatADeviceCannotDoIsRefused) {
  const TaskFolder task;
  for (const char* setting :
       {"model.layers=plain", "rollout.kernels=base", "rollout.dtype=bfloat16", "rollout.deterministic=true"}) {
    const Outcome outcome = task.mortise("train run.toml model.path=absent " + kAsDevice + setting);
    EXPECT_EQ(outcome.code, 2) << setting << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("cannot do yet")) << setting;
    EXPECT_THAT(outcome.output, HasSubstr("or set model.device = \"cpu\"")) << setting;
  }
  for (const char* setting : {"ranks.zero_stage=3", "actor.tensor_model_parallel_size=2 ref.sync_steps=2"}) {
    const std::string offload = std::string("ref.offload=file ") + setting;
    const Outcome outcome = task.mortise("train run.toml actor.use_kl_loss=true " + kAsDevice + offload);
    EXPECT_EQ(outcome.code, 2) << setting << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("'ref.offload' keeps ")) << setting;
    EXPECT_THAT(outcome.output, HasSubstr("cannot do yet")) << setting;
    if (std::string_view(setting).starts_with("actor.")) continue;  // a dry run of one rank has no groups
    const Outcome without = task.mortise("train run.toml --dry-run " + kAsDevice + offload);
    EXPECT_EQ(without.code, 0) << without.output;
  }
  const Outcome unknown = task.mortise("train run.toml model.device=gpu");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("choose auto, cpu, cuda, cuda:N or cpu-as-device"));
}

// Graphs of decoding keep memory on a GPU alone, and threads take memory for attention on the CPU alone.
TEST(DeviceRuns, ADryRunCountsGraphsOnAGpuAndThreadsOnTheCpu) {
  const TaskFolder task;
  const auto bytes = [&](const std::string& settings, const char* part) {
    const Outcome outcome = task.mortise("train run.toml --dry-run --json " + settings + " 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return parse_json(outcome.output, "dry run").value()["memory_bytes"][part].get<int64_t>();
  };
  const int64_t rows = bytes("model.device=cuda rollout.max_num_seqs=16", "decode_graphs");
  EXPECT_GT(rows, 0);
  EXPECT_EQ(bytes("model.device=cuda rollout.max_num_seqs=32", "decode_graphs"), 2 * rows);
  EXPECT_EQ(bytes("model.device=cuda model.dtype=float64", "decode_graphs"), 0);
  EXPECT_EQ(bytes("model.device=cpu", "decode_graphs"), 0);
  const int64_t of_one = bytes("trainer.num_threads=1", "attention");
  EXPECT_GT(of_one, 0);
  EXPECT_EQ(bytes("trainer.num_threads=2", "attention"), 2 * of_one);
  EXPECT_EQ(bytes("model.device=cuda trainer.num_threads=2", "attention"), 0);
  // The masters lie in files with the optimizer's state, as on the CPU.
  const std::string offload = "model.dtype=bfloat16 actor.optim.offload=file model.device=";
  EXPECT_GT(bytes(offload + "cuda", "offloaded_to_files"), 0);
  EXPECT_EQ(bytes(offload + "cuda", "offloaded_to_files"), bytes(offload + "cpu", "offloaded_to_files"));
}

// On any machine: the log says which setting decided it.
TEST(DeviceRuns, AutoTakesTheCpuForWhatADeviceCannotDo) {
  for (const char* setting :
       {"actor.use_kl_loss=true ref.offload=file ranks.zero_stage=3", "rollout.deterministic=true"}) {
    const TaskFolder task;
    const Outcome outcome =
        task.mortise(std::string("train run.toml trainer.total_training_steps=1 model.device=auto ") + setting);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("device: the CPU, because '")) << setting;
    EXPECT_THAT(outcome.output, HasSubstr("which runs on a GPU cannot do yet")) << setting;
  }
}

// On a machine with a GPU there is nothing to test.
TEST(DeviceRuns, WithoutAGpu) {
  const TaskFolder task;
  const Outcome outcome = task.mortise("train run.toml model.device=cuda");
  if (outcome.code == 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("no NVIDIA driver was found"));
  EXPECT_FALSE(default_env().exists(task.path() / "out"));
  const Outcome dry = task.mortise("train run.toml --dry-run model.device=cuda");
  EXPECT_EQ(dry.code, 0) << dry.output;
  EXPECT_THAT(dry.output, HasSubstr("# device: cuda cannot be used: no NVIDIA driver was found"));
  const Outcome automatic = task.mortise("train run.toml model.device=auto trainer.total_training_steps=1");
  EXPECT_EQ(automatic.code, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("device: the CPU, because no NVIDIA driver was found"));
  EXPECT_EQ(task.mortise("train run.toml model.device=cpu trainer.total_training_steps=1").code, 0);  // a resume
  const Outcome json = task.mortise("train run.toml --dry-run --json model.device=auto 2>/dev/null");
  EXPECT_EQ(parse_json(json.output, "dry run").value()["device"]["name"], "cpu");
}

}  // namespace
}  // namespace mortise::test
