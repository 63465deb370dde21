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

class SequenceParallel : public testing::TestWithParam<SharedCase> {};

TEST_P(SequenceParallel, Float64RunsAreEqualToRounding) {
  expect_numbers_of_one_process(GetParam().run, mesh(1),
                                chosen(GetParam(), {{"dp_2_sp_2", 4, mesh(2)}, {"sp_4", 4, mesh(4)}}));
}

INSTANTIATE_TEST_SUITE_P(
    All, SequenceParallel,
    testing::Values(SharedCase{{"adaptive_kl", "train", {}}, {"dp_2_sp_2", "sp_4"}},
                    SharedCase{{"critic_and_zero_3",
                                "train",
                                {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "ranks.zero_stage=3"}},
                               {"dp_2_sp_2", "sp_4"}},
                    SharedCase{{"lora_and_gspo",
                                "train",
                                {"model.lora_rank=2", "model.lora_dropout=0.2", "actor.policy_loss.loss_mode=gspo",
                                 "model.enable_gradient_checkpointing=true"}},
                               {"sp_4"}},
                    SharedCase{{"sft", "sft", {}}, {"dp_2_sp_2"}}),
    [](const auto& one) { return std::string(one.param.run.name); });

TEST(SequenceParallelRun, DeterministicRunsDoNotDependOnTheNumberOfGroups) { expect_bits_of_one_group(mesh(2)); }

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
    expect_refused(task, num_ranks, settings, text);
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
  EXPECT_THAT(dry_run(task, 4, mesh(2)), HasSubstr("# mesh: dp 2 x sp 2; 2 ranks share the tokens of each pass"));
  const auto numbers = [&](int size, const std::vector<std::string>& more = {}) {
    return dry_run_numbers(task, 4, joined(mesh(size), more));
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
  const auto of_critic = [](const Json& one) {
    return one.at("ranks").at("critic_bytes_sent_per_step").get<int64_t>();
  };
  EXPECT_EQ(of_critic(whole), 0);
  EXPECT_GT(of_critic(critic_whole), 0);
  const Json critic_shared =
      numbers(4, joined(critic, {"critic.ulysses_sequence_parallel_size=4", "critic.ppo_max_token_len_per_gpu=5"}));
  EXPECT_EQ(activations(critic_shared), activations(shared));
}

TEST(SequenceParallelRun, ARankThatIsKilledIsNamed) { expect_killed_rank_is_named(mesh(4)); }

}  // namespace
}  // namespace mortise::test
