// A disk that fails during a whole run, at every k-th of its operations. The last saved checkpoint still loads, and the
// run continues from it to the same bits. The run is in this process, so that the test can count operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checkpoint/reader.h"
#include "foundation/metrics/names.h"
#include "in_process.h"

namespace mortise::test {
namespace {

constexpr int64_t kSteps = 3;

TEST(RunFaults, AnyFailingCallLeavesACheckpointThatGoesOn) {
  const TinyTask task;
  const InFolder inside(task.path());
  FaultEnv counting(default_env());
  ASSERT_OK(train_on(counting, "straight", kSteps));
  const int64_t num_operations = counting.num_operations();
  EXPECT_GT(num_operations, 100);
  const auto expected = bits_of_run("straight", kSteps);
  const int64_t stride = std::getenv("MORTISE_LONG") != nullptr ? 1 : 17;
  int num_failed = 0, num_resumed = 0;
  for (int64_t k = 1; k <= num_operations; k += stride) {
    for (const bool crashes : {false, true}) {
      FaultEnv env(default_env());
      if (crashes)
        env.crash_at(k);
      else
        env.fail_at(k);
      const Result<TrainSummary> stopped = train_on(env, "out", kSteps);
      ASSERT_GE(env.num_operations(), k);
      const std::string where = (crashes ? "gone from operation " : "failed operation ") + std::to_string(k) + ", " +
                                env.operations()[static_cast<size_t>(k) - 1];
      if (!stopped.ok()) {
        EXPECT_EQ(stopped.error().kind, ErrorKind::kDisk) << where << ": " << stopped.error().to_string();
        ++num_failed;
      }
      const auto found = find_newest_valid(default_env(), "out");
      ASSERT_OK(found);
      FaultEnv healthy(default_env());
      const Result<TrainSummary> resumed = train_on(healthy, "out", kSteps);
      ASSERT_TRUE(resumed.ok()) << where << ": " << resumed.error().to_string();
      expect_same_bits(bits_of_run("out", kSteps), expected, where);
      if (found->has_value()) {  // checks that it resumed: a run from scratch would give the same bits
        EXPECT_FALSE(default_env().exists("out.before_1")) << where;
        ++num_resumed;
      }
      for (const char* folder : {"out", "out.before_1"}) ASSERT_OK(remove_tree(default_env(), folder));
    }
  }
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_resumed, 0);
}

struct StageCase {
  std::string name;
  std::vector<std::string> settings;
  int64_t update;       // how many updates of step 2 are done when the process dies
  std::string measure;  // a number of step 2: above 0 if the current stage has made progress
};

// What a step does before its updates and must not do twice: the critic's updates, weights and mask of the correction,
// groups kept for the next step, the controllers' coefficients, baselines.
const StageCase kStages[] = {
    {"adaptive KL in the reward, and validations",
     {"data.val_files=data/val.jsonl", "data.val_max_samples=3", "trainer.test_freq=2", "rollout.val_kwargs.n=2",
      "rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1.0"},
     1,
     "actor/reward_kl_penalty_coeff"},
    {"a critic",
     {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "algorithm.lam=0.95", "critic.ppo_epochs=1",
      "critic.optim.lr=1e-2", "critic.optim.lr_scheduler_type=linear"},
     2,
     "critic/grad_norm"},
    {"correction by step",
     {"rollout.dtype=bfloat16", "algorithm.rollout_correction.rollout_is=token",
      "algorithm.rollout_correction.rollout_rs=token_k1",
      "algorithm.rollout_correction.rollout_rs_threshold=0.9999_1.0001"},
     0,
     "rollout_corr/rollout_rs_masked_fraction"},
    {"correction by update",
     {"algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.loss_type=reinforce",
      "actor.policy_loss.loss_mode=reinforce", "algorithm.rollout_correction.rollout_is=sequence"},
     3,
     "rollout_corr/rollout_is_mean"},
    {"groups left over",
     {"algorithm.filter_groups.enable=true", "data.gen_batch_size=7"},
     1,
     "training/filter_groups/carried"},
    {"groups of earlier steps",
     {"algorithm.replay_buffer.enable=true", "algorithm.adv_estimator=grpo", "~algorithm.adv_params",
      "algorithm.use_kl_in_reward=false", "rollout.n=3", "reward.0.pattern=^[0-2]"},
     1,
     "training/replay_buffer/replaced"},
    {"rows of an earlier step",
     {"rollout.over_sampling=1.5", "rollout.n=2", "data.max_response_length=12"},
     2,
     "training/over_sampling/carried"},
    {"rows that wait for an update", {"actor.carry_rows=true", "actor.rows_per_update=6"}, 1, "training/carried_rows"},
    {"adaptive entropy and a moving reference",
     {"algorithm.use_kl_in_reward=false", "actor.use_kl_loss=true", "ref.sync_steps=1", "actor.entropy_coeff=0.01",
      "actor.entropy_ctrl.type=adaptive", "actor.entropy_ctrl.target_entropy=9"},
     2,
     "entropy_coef"},
    {"an adapter", {"model.lora_rank=2"}, 2, "actor/grad_norm"},
    {"greedy baselines", {"algorithm.adv_estimator=remax", "~algorithm.adv_params"}, 3, "timing_s/gen_max"},
    {"token baselines",
     {"algorithm.adv_estimator=optimal_token_baseline", "~algorithm.adv_params"},
     1,
     "variance_proxy/proxy2_total_power"},
    {"the experts of the pass for old log-probs",
     {"model.path=moe/model", "actor.router_replay.mode=R2", "actor.router_aux_loss_coef=0.1"},
     2,
     "actor/router_aux_loss"},
    {"the sampler's experts, with groups left over",
     {"model.path=moe/model", "actor.router_replay.mode=R3", "actor.router_z_loss_coef=0.1",
      "algorithm.filter_groups.enable=true", "data.gen_batch_size=7"},
     1,
     "actor/router_z_loss"},
};

void add_names(const Path& file, std::set<std::string>& names) {
  for (const Json& row : rows_of(file)) {
    for (const auto& [name, value] : row.items()) names.insert(name);
  }
}

// The table of metrics lists what runs write: all of it is in these, but what needs a certain loss, sft, a
// backend with a copy of the weights, tools (turns_test.cpp), a teacher or filtered log-probs
// (objective_stages_test.cpp), rows of several data sources (step_metrics_test.cpp), or
// a device (device_test.cpp).
void expect_the_tables_names(const std::set<std::string>& names) {
  const std::set<std::string_view> elsewhere{
      "training/learnt_tokens",    "cispo_clip_ratio",          "vespo_phi_mean",
      "timing_s/update_weights",   "tool_call_counts/mean",     "tool_call_counts/max",
      "tool_call_counts/min",      "tools/call_frequency",      "tools/failure_frequency",
      "environment/failed_ratio",  "actor/teacher_divergence",  "actor/teacher_kl",
      "actor/sft_mix_loss",        "actor/sft_mix_mu",          "actor/sft_mix_tokens",
      "actor/sft_mix_prob",        "training/kept_tokens/mean", "training/kept_tokens/missing_frac",
      "timing_s/teacher",          "timing_s/kept_tokens",      "train-core/{any}",
      "timing_s/offload_optimizer"};
  for (const MetricInfo& info : metric_table()) {
    const bool made = std::any_of(names.begin(), names.end(),
                                  [&](const std::string& name) { return metric_pattern_matches(info.pattern, name); });
    EXPECT_NE(made, elsewhere.contains(info.pattern)) << info.pattern;
  }
}

// The process dies right after a checkpoint inside step 2. The resumed run gives the same bits.
TEST(RunFaults, GoesOnInsideAStepWithEveryStage) {
  const TinyTask task;
  const InFolder inside(task.path());
  ASSERT_EQ(run(program("make_task") + " moe --seed 3 --experts", task.path()).code, 0);
  std::set<std::string> names;
  for (const StageCase& stage : kStages) {
    SCOPED_TRACE(stage.name);
    std::vector<std::string> settings = stage.settings;
    settings.emplace_back("trainer.save_freq_updates=1");
    FaultEnv counting(default_env());
    const Result<TrainSummary> straight = train_on(counting, "straight", kSteps, settings);
    ASSERT_TRUE(straight.ok()) << straight.error().to_string();
    const auto expected = bits_of_run("straight", kSteps);
    const Json row = rows_of("straight/metrics.jsonl").at(1);
    ASSERT_TRUE(row.contains(stage.measure)) << stage.measure;
    EXPECT_GT(row[stage.measure].get<double>(), 0.0) << stage.measure;

    FaultEnv cut(default_env());
    cut.crash_at(announcement_of(counting, checkpoint_name({1, stage.update})) + 1);
    EXPECT_FALSE(train_on(cut, "out", kSteps, settings).ok());
    const auto found = find_newest_valid(default_env(), "out");
    ASSERT_OK(found);
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->ref.place, (CheckpointPlace{1, stage.update}));
    FaultEnv healthy(default_env());
    const Result<TrainSummary> resumed = train_on(healthy, "out", kSteps, settings);
    ASSERT_TRUE(resumed.ok()) << resumed.error().to_string();
    expect_same_bits(bits_of_run("out", kSteps), expected, stage.name);
    for (const char* file : {"metrics.jsonl", "updates.jsonl"}) add_names(Path("straight") / file, names);
    for (const char* folder : {"straight", "out"}) ASSERT_OK(remove_tree(default_env(), folder));
  }
  expect_the_tables_names(names);
}

}  // namespace
}  // namespace mortise::test
