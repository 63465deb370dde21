// Ranks whose updates read what sampling has computed: the numbers of one process, whoever has sampled, and after a kill.
#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "rank_group.h"

namespace mortise::test {
namespace {

class RankReuse : public Ranks {};

// One update of all rows in each step, which reads what sampling has computed of them.
std::vector<std::string> reuses_sampling(int64_t num_steps) {
  return {"actor.ppo_mini_batch_size=4", "data.max_response_length=6",
          "trainer.total_training_steps=" + std::to_string(num_steps)};
}

void expect_near_first_row(const Path& a, const Path& b, const char* file) {
  const Json row = rows_of(a / file).at(0), want = rows_of(b / file).at(0);
  for (const auto& [name, value] : want.items()) {
    if (is_time(name) || name.starts_with("global_seqlen/") || !value.is_number()) continue;
    EXPECT_NEAR(number_of(row, name), value.get<double>(), 1e-6 * (1.0 + std::abs(value.get<double>()))) << name;
  }
}

// The tokens are the same, and the gradient but for rounding, also if the update computes everything itself.
TEST_F(RankReuse, UpdatesAreEqualToRounding) {
  const std::vector<std::string> settings = reuses_sampling(1);
  run_alone("train", "alone", settings);
  std::vector<std::string> computes = settings;
  computes.emplace_back("rollout.reuse_forward_mib=0");
  run_group(2, "train", "computes", computes);
  std::vector<std::string> dry = settings;
  dry.emplace_back("--dry-run");
  run_group(2, "train", "dry", dry);
  if (HasFailure()) return;
  const std::string said = default_env().read_file(task_.path() / "console_0.txt").value();
  EXPECT_NE(said.find("reads what sampling has computed"), std::string::npos) << said;
  for (const auto& [size, stage] : std::vector<std::pair<size_t, int>>{{2, 0}, {3, 1}, {3, 2}}) {
    if (HasFailure()) return;
    const std::string out = "stage_" + std::to_string(stage);
    std::vector<std::string> shared = settings;
    shared.push_back("ranks.zero_stage=" + std::to_string(stage));
    run_group(size, "train", out, shared);
    if (HasFailure()) return;
    for (const std::string other : {"alone", "computes"})
      expect_near_first_row(task_.path() / out, task_.path() / other, "updates.jsonl");
    EXPECT_EQ(bits_of_run(task_.path() / out, 1).at("dump/1.jsonl"),
              bits_of_run(task_.path() / "alone", 1).at("dump/1.jsonl"));
  }
}

// The first of several mini-batches has prompts that rank 0 has sampled, so rank 1 makes the numbers of its share again.
TEST_F(RankReuse, TheFirstOfSeveralMiniBatches) {
  std::vector<std::string> settings = reuses_sampling(2);
  settings.emplace_back("actor.ppo_mini_batch_size=2");
  run_alone("train", "alone", settings);
  if (HasFailure()) return;
  for (const std::string out : {"shared", "again"}) {
    run_group(2, "train", out, settings);
    if (HasFailure()) return;
    expect_near_first_row(task_.path() / out, task_.path() / "alone", "updates.jsonl");
  }
  expect_same_bits(bits_of_run(task_.path() / "again", 2), bits_of_run(task_.path() / "shared", 2), "again");
}

// Rank 0 has short prompts and rank 1 long ones. If they begin one at a time, they take prompts of each other, and learn rows
// that the other one has sampled.
TEST_F(RankReuse, UpdatesDoNotDependOnWhoSampled) {
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    std::string prompt = std::to_string(10 + i);
    for (int j = 1; j < (i < 6 ? 2 : 16); ++j) prompt += "+" + std::to_string(20 + i);
    rows += R"({"prompt": ")" + prompt + R"(="})" + "\n";
  }
  task_.write("data/uneven.jsonl", rows);
  std::vector<std::string> settings = reuses_sampling(kSteps);
  settings.insert(settings.end(),
                  {"data.train_files=data/uneven.jsonl", "data.shuffle=false", "data.train_batch_size=12",
                   "data.max_prompt_length=50", "actor.ppo_mini_batch_size=12", "actor.ppo_max_token_len_per_gpu=100"});
  std::vector<std::string> in_turn = settings;
  in_turn.emplace_back("rollout.max_num_seqs=1");
  run_group(2, "train", "at_home", settings);
  if (HasFailure()) return;
  const auto expected = bits("at_home");
  for (const std::string out : {"taken", "taken_again"}) {
    run_group(2, "train", out, in_turn);
    if (HasFailure()) return;
    expect_same_bits(bits(out), expected, out);
  }
}

// All ranks are killed before the first update of step 3, which then learns rows that nobody has sampled.
TEST_F(RankReuse, AResumeBeforeAnUpdate) {
  std::vector<std::string> settings = reuses_sampling(kSteps);
  settings.insert(settings.end(), {"trainer.save_freq_updates=1000", "trainer.save_freq=-1", "actor.ppo_epochs=30"});
  run_group(2, "train", "straight", settings);
  if (HasFailure()) return;
  const Path killed = task_.path() / "killed";
  const auto kill_inside_step_3 = [&] {
    EXPECT_OK(remove_tree(default_env(), killed));
    EXPECT_OK(default_env().create_dirs(killed));
    FolderWatch watch(killed);
    Group group(std::vector(size_t{2}, words("train", "killed", settings)), task_.path());
    EXPECT_TRUE(watch.wait_for("unfinished_step_3_update_0", 1, group[0])) << group.text_of(0);
    watch.wait_for("latest", 1, group[0]);
    for (size_t rank = 0; rank < 2; ++rank) group[rank].signal(SIGKILL);
    (void)group.wait();
    const auto found = find_newest_valid(default_env(), killed);
    EXPECT_OK(found);
    return found.ok() && found->has_value() && (*found)->ref.place.step == 2 && (*found)->ref.place.update;
  };
  bool is_killed = false;
  for (int tries = 0; tries < 20 && !is_killed && !HasFailure(); ++tries) is_killed = kill_inside_step_3();
  ASSERT_TRUE(is_killed) << "no kill was fast enough";
  const Path on_one = task_.path() / "on_one";
  std::filesystem::copy(killed, on_one, std::filesystem::copy_options::recursive);
  run_group(2, "train", "killed", settings);
  if (HasFailure()) return;
  EXPECT_NE(default_env().read_file(killed / "log.txt").value().find("unfinished_step_3_update_0"), std::string::npos);
  expect_same_bits(bits("killed"), bits("straight"), "killed");
  // One process continues what two have begun: the first update that it makes has the same numbers.
  run_alone("train", "on_one", settings);
  if (HasFailure()) return;
  const std::vector<Json> rows = rows_of(on_one / "updates.jsonl"), want = rows_of(killed / "updates.jsonl");
  ASSERT_EQ(rows.size(), want.size());
  const size_t first = 2 * want.size() / kSteps;
  for (const char* name : {"loss", "grad_norm", "entropy"}) {
    const double expected = number_of(want[first], name);
    EXPECT_NEAR(number_of(rows[first], name), expected, 1e-6 * (1.0 + std::abs(expected))) << name;
  }
}

}  // namespace
}  // namespace mortise::test
