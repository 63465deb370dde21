// Whole runs on a device whose memory the host cannot reach, by the emulated kernels of core/cuda and libtorch's operators
// (support/engine/locked_engine.cpp). They learn what the same code learns with tensors of the CPU. A number of the device that
// the host reads, writes or mixes with its own ends a run with an error or a segmentation fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device_runs.h"

namespace mortise::test {
namespace {

using testing::ContainsRegex;

const std::string kLocked = std::string(MORTISE_BINARY_DIR) + "/test_bin/locked_engine";
// Validations and checkpoints in each of few steps.
const std::string kWhole = kFew + "model.device=cpu-as-device data.val_files='[\"few.jsonl\"]' trainer.test_freq=1 ";

// The numbers of each step. Operators there read contiguous copies, and so add in another order. Updates carry the difference
// on: `later` is the tolerance behind the first one.
void expect_close_metrics(const Path& got, const Path& want, double later) {
  const std::vector<Json> a = rows_of(got / "metrics.jsonl"), b = rows_of(want / "metrics.jsonl");
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GE(b.size(), 3U);
  for (size_t i = 0; i < b.size(); ++i) {
    const double tolerance = i == 0 ? 1e-3 : later;
    for (const auto& [name, value] : b[i].items()) {
      if (is_time(name) || !value.is_number()) continue;
      const double expected = value.get<double>();
      EXPECT_NEAR(number_of(a[i], name), expected, tolerance * std::max(1.0, std::abs(expected))) << name << " " << i;
    }
  }
}

struct LockedRun {
  const char* name;
  const char* task;      // options of make_task
  const char* settings;  // besides kWhole
  double later = 1e-3;
};

class LockedRuns : public testing::TestWithParam<LockedRun> {};

// The run, the same on the CPU, and a resume from its second step, which has the bits of the run.
TEST_P(LockedRuns, LearnWhatTheCpuLearnsAndResume) {
  const TaskFolder task(GetParam().task);
  ASSERT_EQ(run("head -n 6 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const std::string command = kWhole + GetParam().settings;
  const Outcome cpu = task.mortise(command + " trainer.default_local_dir=cpu", "MORTISE_OPEN_MEMORY=1 " + kLocked);
  ASSERT_EQ(cpu.code, 0) << cpu.output;
  const Outcome locked = task.mortise(command, kLocked);
  ASSERT_EQ(locked.code, 0) << locked.output;
  EXPECT_THAT(locked.output, ContainsRegex("locked device: [0-9]{4,} operators, [0-9]{3,} kernels"));
  expect_close_metrics(task.path() / "out", task.path() / "cpu", GetParam().later);
  cut_back(task.path() / "out", task.path() / "resumed", 2, 3);
  const Outcome resumed = task.mortise(command + " trainer.default_local_dir=resumed", kLocked);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  for (const char* file : {"global_step_3/huggingface/model.safetensors", "global_step_3/state.safetensors"}) {
    if (!default_env().exists(task.path() / "out" / file)) continue;  // an adapter has another name
    EXPECT_EQ(hash_of(task.path() / "resumed" / file), hash_of(task.path() / "out" / file)) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, LockedRuns,
    testing::Values(
        LockedRun{"a_critic_that_sleeps", "--tiny",
                  "algorithm.adv_estimator=gae rollout.sleep_while_training=true "
                  "actor.optim.offload=while_sampling critic.optim.offload=while_sampling ref.sync_steps=2"},
        LockedRun{"bfloat16_that_sleeps", "--tiny",
                  "model.dtype=bfloat16 rollout.sleep_while_training=true actor.optim.offload=while_sampling "
                  "actor.entropy_coeff=0.01"},
        LockedRun{"one_step_off", "--tiny", "trainer.mode=one_step_off actor.policy_loss.loss_mode=gspo"},
        LockedRun{"an_adapter", "--tiny", "model.lora_rank=4 actor.optim.lr=0.02 trainer.save_merged_lora=true"},
        LockedRun{"a_teacher", "--tiny", "teacher.path=model teacher.loss_coef=0.5"},
        LockedRun{"filters", "--tiny",
                  "rollout.top_k=5 rollout.repetition_penalty=1.2 rollout.filtered_log_probs=true"},
        LockedRun{"experts", "--experts", "actor.router_aux_loss_coef=0.01 rollout.n=4"},
        LockedRun{"experts_in_bfloat16", "--experts", "model.dtype=bfloat16 actor.router_replay.mode=R3 rollout.n=4",
                  0.05}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(LockedPrograms, SupervisedRunsEvaluationsAndGeneration) {
  const TaskFolder task("--tiny");
  ASSERT_EQ(run("head -n 6 data/val.jsonl > few.jsonl", task.path()).code, 0);
  const std::string open = "MORTISE_OPEN_MEMORY=1 " + kLocked;
  const std::string sft =
      "sft run.toml data.train_files='[\"data/sft.jsonl\"]' data.max_response_length=8 sft.total_training_steps=3 "
      "sft.train_batch_size=8 trainer.logger='[]' model.device=cpu-as-device ";
  for (const auto& [program, out] : {std::pair(open, "cpu"), std::pair(kLocked, "out")}) {
    const Outcome learnt = task.mortise(sft + "trainer.default_local_dir=" + out, program);
    ASSERT_EQ(learnt.code, 0) << learnt.output;
  }
  expect_close_metrics(task.path() / "out", task.path() / "cpu", 1e-3);
  const std::string learnt_model = "out/global_step_3/huggingface";
  const auto answer = [&](const std::string& command, const std::string& program) {
    const Outcome outcome = task.mortise(command + " model.device=cpu-as-device 2>log.txt", program);
    EXPECT_EQ(outcome.code, 0) << outcome.output << default_env().read_file(task.path() / "log.txt").value();
    return parse_json(outcome.output, "answer").value();
  };
  const std::string eval = "eval run.toml --json data.val_files='[\"few.jsonl\"]' model.path=" + learnt_model;
  const Json there = answer(eval, kLocked), here = answer(eval, open);
  EXPECT_GE(here.size(), 2U);
  for (const auto& [name, value] : here.items()) {
    if (is_time(name) || !value.is_number()) continue;
    EXPECT_NEAR(number_of(there, name), value.get<double>(), 1e-3) << name;
  }
  const std::string generate =
      "generate --model " + learnt_model + " --prompts few.jsonl --json rollout.n=3 rollout.response_length=6 --out ";
  EXPECT_EQ(answer(generate + "there.jsonl", kLocked)["path"], "device_kernels");
  EXPECT_EQ(answer(generate + "here.jsonl", open)["path"], "device_kernels");
  const auto got = rows_of(task.path() / "there.jsonl"), want = rows_of(task.path() / "here.jsonl");
  ASSERT_EQ(got.size(), 6U);
  ASSERT_EQ(want.size(), 6U);
  for (size_t i = 0; i < want.size(); ++i) {
    for (size_t s = 0; s < 3; ++s)
      EXPECT_EQ(got[i]["completions"][s]["token_ids"], want[i]["completions"][s]["token_ids"]) << i << " " << s;
  }
}

}  // namespace
}  // namespace mortise::test
