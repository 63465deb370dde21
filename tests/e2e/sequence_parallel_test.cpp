// Sequence parallel in whole runs of `mortise launch`: the numbers of one process, resumes with other meshes, refusals,
// what --dry-run says, and a rank that is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rank_runs.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// Passes of at most 20 tokens, however many ranks share them.
std::vector<std::string> mesh(int sequence_size) {
  return {"actor.ulysses_sequence_parallel_size=" + std::to_string(sequence_size),
          "critic.ulysses_sequence_parallel_size=" + std::to_string(sequence_size),
          "actor.ppo_max_token_len_per_gpu=" + std::to_string(20 / sequence_size)};
}

class SequenceParallel : public testing::TestWithParam<RunCase> {};

TEST_P(SequenceParallel, Float64RunsAreEqualToRounding) {
  const TinyTask task;
  const std::string section = GetParam().command == std::string("sft") ? "sft" : "trainer";
  const std::vector<std::string> settings =
      joined({"model.dtype=float64", section + ".total_training_steps=" + std::to_string(kSteps)}, GetParam().settings);
  const Outcome alone = launch(task, 1, GetParam().command, "alone", joined(settings, mesh(1)));
  ASSERT_EQ(alone.code, 0) << alone.output;
  for (const auto& [num_ranks, size] : std::vector<std::pair<int, int>>{{4, 2}, {4, 4}}) {
    const std::string out = "dp_" + std::to_string(num_ranks / size) + "_sp_" + std::to_string(size);
    const Outcome shared = launch(task, num_ranks, GetParam().command, out, joined(settings, mesh(size)));
    ASSERT_EQ(shared.code, 0) << shared.output;
    expect_near_rows(task.path() / out, task.path() / "alone", "metrics.jsonl", 1e-11);
    expect_near_rows(task.path() / out, task.path() / "alone", "updates.jsonl", 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SequenceParallel,
    testing::Values(RunCase{"adaptive_kl", "train", {}},
                    RunCase{"critic_and_zero_3",
                            "train",
                            {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "ranks.zero_stage=3"}},
                    RunCase{"lora_and_gspo",
                            "train",
                            {"model.lora_rank=2", "model.lora_dropout=0.2", "actor.policy_loss.loss_mode=gspo",
                             "model.enable_gradient_checkpointing=true"}},
                    RunCase{"sft", "sft", {}}),
    [](const auto& one) { return std::string(one.param.name); });

// One size of the groups: any number of them gives the same bits, also across a resume.
TEST(SequenceParallelRun, DeterministicRunsDoNotDependOnTheNumberOfGroups) {
  const TinyTask task;
  const std::vector<std::string> settings = joined({"trainer.deterministic=true"}, mesh(2));
  const Outcome straight = launch(task, 2, "train", "straight", until(kSteps, settings));
  ASSERT_EQ(straight.code, 0) << straight.output;
  for (const auto& [step, num_ranks] : std::vector<std::pair<int64_t, int>>{{1, 4}, {2, 2}, {kSteps, 4}}) {
    const Outcome part = launch(task, num_ranks, "train", "out", until(step, settings));
    ASSERT_EQ(part.code, 0) << part.output;
  }
  const auto updates = [&](const std::string& out) {
    return default_env().read_file(task.path() / out / "updates.jsonl").value();
  };
  EXPECT_EQ(updates("out"), updates("straight"));
  const std::string weights = "global_step_3/huggingface/model.safetensors";
  ASSERT_TRUE(default_env().exists(task.path() / "straight" / weights));
  EXPECT_EQ(hash_of(task.path() / "out" / weights), hash_of(task.path() / "straight" / weights));
}

// 2 x 2 ranks, then one process, then 1 x 4.
TEST(SequenceParallelRun, ResumesWithAnotherMesh) {
  const TinyTask task;
  const std::vector<std::string> settings{"model.dtype=float64"};
  ASSERT_EQ(launch(task, 1, "train", "straight", until(kSteps, joined(settings, mesh(1)))).code, 0);
  for (const auto& [num_ranks, size] : std::vector<std::pair<int, int>>{{4, 2}, {1, 1}, {4, 4}}) {
    const int64_t step = size == 2 ? 1 : size == 1 ? 2 : kSteps;
    const Outcome part = launch(task, num_ranks, "train", "out", until(step, joined(settings, mesh(size))));
    ASSERT_EQ(part.code, 0) << part.output;
  }
  expect_near_rows(task.path() / "out", task.path() / "straight", "updates.jsonl", 1e-11);
}

TEST(SequenceParallelRun, WhatCannotBeSharedIsRefusedByName) {
  const TinyTask task;
  const auto refused = [&](int num_ranks, const std::vector<std::string>& settings, const std::string& text) {
    const Outcome outcome = launch(task, num_ranks, "train", "out", settings);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
    EXPECT_FALSE(default_env().exists(task.path() / "out"));
  };
  refused(1, mesh(2), "'actor.ulysses_sequence_parallel_size' is 2, but 1 rank cannot form groups of 2");
  refused(
      3, {"actor.ulysses_sequence_parallel_size=3"},
      "'actor.ulysses_sequence_parallel_size' is 3, but the 4 query heads and 2 key-value heads of the policy do not "
      "divide among so many ranks");
  refused(2, {"ref.ulysses_sequence_parallel_size=4"}, "'ref.ulysses_sequence_parallel_size' is 4, but 2 ranks cannot");
  refused(1, {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "critic.ulysses_sequence_parallel_size=2"},
          "'critic.ulysses_sequence_parallel_size' is 2, but 1 rank cannot form groups of 2");
  refused(1, {"actor.ppo_max_token_len_per_gpu=5"}, "one row may have 11 tokens");
  for (const std::string key : {"actor", "ref", "critic"}) {
    const std::string name = key + ".ulysses_sequence_parallel_size";
    refused(1, {name + "=9223372036854775807"}, name);
  }
}

TEST(SequenceParallelRun, TheDryRunShowsTheMesh) {
  const TinyTask task;
  const auto dry = [&](int num_ranks, int size, const std::string& format, const std::vector<std::string>& more = {}) {
    std::string line = program() + " launch --log-dir logs --nproc " + std::to_string(num_ranks);
    for (const std::string& word : task.words("train", "out", joined(mesh(size), more)))
      if (word != program()) line += " '" + word + "'";
    const Outcome outcome = run(line + " --dry-run" + format, task.path());
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(dry(4, 2, ""), HasSubstr("# mesh: dp 2 x sp 2; 2 ranks share the tokens of each pass"));
  const auto numbers = [&](int size, const std::vector<std::string>& more = {}) {
    const std::string output = dry(4, size, " --json", more);
    return parse_json(output.substr(output.find('{')), "dry run").value();
  };
  const Json whole = numbers(1), shared = numbers(4);
  EXPECT_EQ(whole.at("ranks").at("sequence_bytes_sent_per_update"), 0);
  EXPECT_GT(shared.at("ranks").at("sequence_bytes_sent_per_update").get<int64_t>(), 0);
  const auto activations = [](const Json& one) { return one.at("memory_bytes").at("activations").get<double>(); };
  EXPECT_NEAR(activations(shared), activations(whole) / 4.0, activations(whole) / 50.0);
  // A critic has a size of its own.
  const std::vector<std::string> critic{"algorithm.adv_estimator=gae", "~algorithm.adv_params",
                                        "critic.ppo_max_token_len_per_gpu=20"};
  const Json critic_whole = numbers(4, joined(critic, {"critic.ulysses_sequence_parallel_size=1"}));
  EXPECT_EQ(activations(critic_whole), activations(whole));
  const Json critic_shared =
      numbers(4, joined(critic, {"critic.ulysses_sequence_parallel_size=4", "critic.ppo_max_token_len_per_gpu=5"}));
  EXPECT_EQ(activations(critic_shared), activations(shared));
}

TEST(SequenceParallelRun, ARankThatIsKilledIsNamed) {
  const TinyTask task;
  std::string line = program() + " launch --log-dir logs --nproc 4";
  for (const std::string& word : task.words("train", "out", until(100000, mesh(4))))
    if (word != program()) line += " '" + word + "'";
  const Outcome outcome = run(line +
                                  " & p=$!; until [ -s out/metrics.jsonl ] || ! kill -0 $p; do sleep 0.05; done; "
                                  "set -- $(cat /proc/$p/task/$p/children); kill -9 $3; wait $p",
                              task.path());
  EXPECT_EQ(outcome.code, 7) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("was killed or crashed in '"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 2 was killed by signal 9 (Killed)"));
}

}  // namespace
}  // namespace mortise::test
