// kill -9 inside a step: the resumed run learns from the step's own samples. kill_test.cpp kills at random moments.
#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

// Starts a run and kills it inside step 3, where a checkpoint of that step is the newest; false where the kill came
// late.
bool kill_inside_step_3(const TinyTask& task, const std::string& name, const std::vector<std::string>& settings,
                        const std::string& update) {
  const Path out = task.path() / name;
  EXPECT_OK(remove_tree(default_env(), out));
  EXPECT_OK(default_env().create_dirs(out));
  FolderWatch watch(out);
  Process process(task.words("train", name, settings), task.path(), task.path() / "console.txt");
  EXPECT_TRUE(watch.wait_for("unfinished_step_3_update_" + update, 1, process));
  watch.wait_for("latest", 1, process);
  process.kill_and_wait();
  const auto found = find_newest_valid(default_env(), out);
  EXPECT_OK(found);
  return found.ok() && found->has_value() && (*found)->ref.place.step == 2 && (*found)->ref.place.update;
}

// Tries until one kill is fast enough, at most 20 times.
bool is_killed_inside_step_3(const TinyTask& task, const std::string& name, const std::vector<std::string>& settings,
                             const std::string& update) {
  for (int tries = 0; tries < 20; ++tries) {
    if (kill_inside_step_3(task, name, settings, update)) return true;
  }
  return false;
}

// After an update inside a step, a resume uses the samples of the checkpoint: another sampling seed changes nothing.
TEST(Crash, InsideAStepItsOwnSamplesAreLearntFrom) {
  const TinyTask task;
  // No checkpoint at the end of step 3, which leaves more time for the kill.
  const std::vector<std::string> settings{"trainer.save_freq_updates=1", "trainer.save_freq=-1",
                                          "trainer.total_training_steps=4"};
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  const auto expected = bits_of_run(task.path() / "straight", 4);
  std::vector<std::string> other_seed = settings;
  other_seed.insert(other_seed.end(), {"rollout.seed=99", "--allow-change"});
  const auto to_step_4 = [](const std::string& text) { return text.substr(0, text.find("{\"step\":4")); };
  for (const std::string update : {"0", "2"}) {
    const std::string name = "killed" + update;
    ASSERT_TRUE(is_killed_inside_step_3(task, name, settings, update)) << "no kill was fast enough";
    const Outcome resumed = task.mortise("train", name, other_seed);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find(name + "/unfinished_step_3_update_"), std::string::npos) << resumed.output;
    const auto bits = bits_of_run(task.path() / name, 4);
    EXPECT_EQ(to_step_4(bits.at("metrics.jsonl")), to_step_4(expected.at("metrics.jsonl")));
    EXPECT_EQ(bits.at("dump/3.jsonl"), expected.at("dump/3.jsonl"));
    EXPECT_NE(bits.at("dump/4.jsonl"), expected.at("dump/4.jsonl"));  // the new seed counts from here on
  }
}

// A run is killed inside a step. Resumed, it still has the rows that waited when this step began.
TEST(Crash, InsideAStepTheRowsThatWaitedAreThere) {
  const TinyTask task;
  const std::vector<std::string> settings{"trainer.save_freq_updates=1", "trainer.save_freq=-1",
                                          "actor.carry_rows=true", "actor.rows_per_update=10",
                                          "trainer.total_training_steps=4"};
  ASSERT_EQ(task.mortise("train", "straight", settings).code, 0);
  const auto expected = bits_of_run(task.path() / "straight", 4);
  for (const std::string update : {"0", "2"}) {
    const std::string name = "killed" + update;
    ASSERT_TRUE(is_killed_inside_step_3(task, name, settings, update)) << "no kill was fast enough";
    const Outcome resumed = task.mortise("train", name, settings);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    expect_same_bits(bits_of_run(task.path() / name, 4), expected, name);
  }
}

// Each step saves before its first update alone, and many updates leave time for the kill.
std::vector<std::string> reuses_sampling(const std::vector<std::string>& changes = {}) {
  std::vector<std::string> settings{
      "trainer.save_freq_updates=1000", "trainer.save_freq=-1", "trainer.total_training_steps=4",
      "actor.ppo_mini_batch_size=4",    "actor.ppo_epochs=30",  "data.max_response_length=6"};
  settings.insert(settings.end(), changes.begin(), changes.end());
  return settings;
}

// The first update of a step reads what sampling has computed of its rows. A resume between the two makes it again.
// "straight" and "killed" are then there.
void expect_resume_before_an_update(const TinyTask& task, const std::vector<std::string>& settings) {
  const Outcome straight = task.mortise("train", "straight", settings);
  ASSERT_EQ(straight.code, 0) << straight.output;
  const auto expected = bits_of_run(task.path() / "straight", 4);
  ASSERT_TRUE(is_killed_inside_step_3(task, "killed", settings, "0")) << "no kill was fast enough";
  const Outcome resumed = task.mortise("train", "killed", settings);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("killed/unfinished_step_3_update_0"), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("decodes the tokens of"), std::string::npos) << resumed.output;
  expect_same_bits(bits_of_run(task.path() / "killed", 4), expected, "killed");
}

// Updates that compute everything themselves have other last bits, and else the same numbers.
void expect_same_numbers_without_reuse(const TinyTask& task, std::vector<std::string> settings, size_t num_updates) {
  const Path straight = task.path() / "straight", own = task.path() / "own";
  settings.emplace_back("rollout.reuse_forward_mib=0");
  const Outcome computed = task.mortise("train", "own", settings);
  ASSERT_EQ(computed.code, 0) << computed.output;
  const std::string model = "global_step_4/huggingface/model.safetensors";
  EXPECT_NE(hash_of(own / model), hash_of(straight / model));
  const std::vector<Json> a = rows_of(straight / "updates.jsonl"), b = rows_of(own / "updates.jsonl");
  ASSERT_EQ(b.size(), num_updates);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, value] : b[0].items()) {
    if (!value.is_number()) continue;
    const double want = value.get<double>();
    EXPECT_NEAR(number_of(a[0], key), want, 1e-5 * (1.0 + std::abs(want))) << key;
  }
}

TEST(Crash, BeforeAnUpdateThatReusesSampling) {
  const TinyTask task;
  const std::vector<std::string> settings = reuses_sampling();
  expect_resume_before_an_update(task, settings);
  if (HasFailure()) return;
  const Path straight = task.path() / "straight";
  // The update finds the log-probs of sampling.
  for (const Json& row : rows_of(straight / "metrics.jsonl"))
    EXPECT_LT(number_of(row, "training/rollout_probs_diff_max"), 1e-6);
  expect_same_numbers_without_reuse(task, settings, 120);
}

TEST(Crash, BeforeAnUpdateOfAnAdapterThatReusesSampling) {
  expect_resume_before_an_update(TinyTask(), reuses_sampling({"model.lora_rank=2"}));
}

// In bfloat16 the step has no other update, which leaves little time for the kill.
TEST(Crash, BeforeAnUpdateThatReusesSamplingInBfloat16) {
  expect_resume_before_an_update(
      TinyTask(), reuses_sampling({"model.dtype=bfloat16", "actor.ppo_epochs=1", "algorithm.use_kl_in_reward=false"}));
}

// The pass for old_log_prob reads the numbers of all rows, and the first update those of its own.
TEST(Crash, BeforeTheFirstOfSeveralUpdatesThatReusesSampling) {
  const TinyTask task;
  const std::vector<std::string> settings = reuses_sampling({"actor.ppo_mini_batch_size=2"});
  expect_resume_before_an_update(task, settings);
  if (HasFailure()) return;
  expect_same_numbers_without_reuse(task, settings, 240);
}

// Groups stay from several generation batches, and some wait for the next step, whose weights are others.
TEST(Crash, BeforeAnUpdateOfFilteredGroupsThatReusesSampling) {
  const TinyTask task;
  const std::vector<std::string> settings =
      reuses_sampling({"algorithm.filter_groups.enable=true", "data.gen_batch_size=3"});
  expect_resume_before_an_update(task, settings);
  if (HasFailure()) return;
  double num_batches = 0, num_carried = 0;
  for (const Json& row : rows_of(task.path() / "straight" / "metrics.jsonl")) {
    num_batches += number_of(row, "train/num_gen_batches");
    num_carried += number_of(row, "training/filter_groups/carried");
  }
  EXPECT_GT(num_batches, 4);
  EXPECT_GT(num_carried, 0);
  expect_same_numbers_without_reuse(task, settings, 120);
}

}  // namespace
}  // namespace mortise::test
