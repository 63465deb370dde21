// Whole processes that share an embedding and a head of several windows, which no update has as a whole (ZeRO 3): the numbers
// and bits of one process, and a rank that is killed while others read its rows.
#include <gtest/gtest.h>

#include "foundation/base/rng.h"
#include "rank_group.h"
#include "rank_runs.h"

namespace mortise::test {
namespace {

// One update a step, of a few tokens. Rewards are rare; the entropy and the KL have gradients. The embedding and the head
// have 5 MB each in float32.
const std::vector<std::string> kSmallSteps{"actor.entropy_coeff=0.05",
                                           "actor.use_kl_loss=true",
                                           "algorithm.use_kl_in_reward=false",
                                           "actor.ppo_epochs=1",
                                           "data.train_batch_size=2",
                                           "data.train_max_samples=6",
                                           "actor.ppo_max_token_len_per_gpu=12",
                                           "rollout.n=3",
                                           "data.max_response_length=2",
                                           "ranks.window_bytes=600000",
                                           "trainer.save_freq=3"};

class RankWindows : public Ranks {
 protected:
  RankWindows() : Ranks("--vocabulary") {}

  [[nodiscard]] std::vector<Json> updates(const std::string& out) const {
    return rows_of(task_.path() / out / "updates.jsonl");
  }
};

TEST_F(RankWindows, Float64RunsAreEqualToRounding) {
  const std::vector<std::vector<std::string>> kinds{
      {"actor.kl_loss_type=full", "algorithm.adv_estimator=optimal_token_baseline", "~algorithm.adv_params"},
      {"rollout.filtered_log_probs=true", "rollout.top_k=40"}};
  size_t number = 2;
  for (const std::vector<std::string>& kind : kinds) {
    const std::vector<std::string> settings = joined(
        joined(kSmallSteps, {"model.dtype=float64", "trainer.total_training_steps=1", "actor.ppo_epochs=2"}), kind);
    const std::string alone = "alone_" + std::to_string(number);
    run_alone("train", alone, settings);
    const std::vector<size_t> one{number++}, all{2, 3};
    for (const size_t size : is_long() ? all : one) {
      if (HasFailure()) return;
      const std::string out = alone + "_on_" + std::to_string(size);
      run_group(size, "train", out, joined(settings, {"ranks.zero_stage=3"}));
      for (const char* const file : {"metrics.jsonl", "updates.jsonl"})
        expect_near_rows(task_.path() / out, task_.path() / alone, file, 1e-12);
    }
    for (const Json& update : updates(alone)) EXPECT_GT(number_of(update, "grad_norm"), 0.0);
  }
}

TEST_F(RankWindows, DeterministicRunsHaveTheSameBits) {
  const std::vector<std::string> settings =
      joined(kSmallSteps, {"trainer.deterministic=true", "actor.kl_loss_type=full"});
  run_alone("train", "alone", settings);
  if (is_long()) run_group(2, "train", "whole", settings);
  run_group(3, "train", "spread", joined(settings, {"ranks.zero_stage=3"}));
  if (HasFailure()) return;
  if (is_long()) expect_same_bits(bits("whole"), bits("alone"), "each rank has all weights");
  expect_same_bits(bits("spread"), bits("alone"), "ranks share the weights");
}

// Kills in the second step until one has hit a rank whose rows the other one was reading, as that one says. The rank stops
// first, so that the other one comes to where it needs it.
TEST_F(RankWindows, ARankThatIsKilledWhileOthersReadItsRowsIsNamedAndARestartGivesTheSameBits) {
  constexpr int kMostKills = 20;
  const std::vector<std::string> settings = joined(kSmallSteps, {"ranks.zero_stage=3", "trainer.save_freq=1"});
  run_group(2, "train", "straight", settings);
  if (HasFailure()) return;
  const auto expected = bits("straight");
  const std::vector<Json> steps = rows_of(task_.path() / "straight" / "metrics.jsonl");
  const auto step_us = static_cast<uint64_t>(number_of(steps.back(), "timing_s/step") * 1e6);
  RandomStream random({.seed = 21});
  bool is_hit = false;
  for (int kill = 0; kill < kMostKills && !is_hit && !HasFailure(); ++kill) {
    std::filesystem::remove_all(task_.path() / "out");
    std::filesystem::create_directories(task_.path() / "out");
    FolderWatch saves(task_.path() / "out");
    Group group(std::vector(size_t{2}, words("train", "out", settings)), task_.path());
    const size_t victim = random.next_below(2), other = 1 - victim;
    ASSERT_TRUE(saves.wait_for("global_step_1", 1, group[victim])) << group.text_of(victim);
    usleep(static_cast<useconds_t>(random.next_below(step_us)));
    group[victim].signal(SIGSTOP);
    usleep(300'000);
    group[victim].signal(SIGKILL);
    const std::vector<int> codes = group.wait();
    if (codes[victim] != -SIGKILL) continue;                                                      // it was done
    if (codes[other] == 0 && default_env().exists(task_.path() / "out/global_step_3")) continue;  // all was done
    EXPECT_EQ(codes[other], 7) << group.text_of(other);
    EXPECT_NE(group.text_of(other).find("rank " + std::to_string(victim)), std::string::npos) << group.text_of(other);
    is_hit = group.text_of(other).find("was in 'reading embedding and head'") != std::string::npos;
  }
  EXPECT_TRUE(is_hit);
  run_group(2, "train", "out", settings);
  if (HasFailure()) return;
  expect_same_bits(bits("out"), expected, "after the kill");
}

}  // namespace
}  // namespace mortise::test
