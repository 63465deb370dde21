// A full disk: before the first step, for a while, and for good. Training continues after a failed save, nothing saved
// is lost, and three failed saves in a row stop the run.
#include <gmock/gmock.h>

#include "checkpoint/reader.h"
#include "checkpoint/room.h"
#include "foundation/base/text.h"
#include "in_process.h"

namespace mortise::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Command = Result<TrainSummary> (*)(Env&, const std::string&, int64_t, const std::vector<std::string>&);

constexpr int64_t kSteps = 7;

uint64_t size_of(const Path& folder) {
  uint64_t bytes = disk_blocks(1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    bytes += disk_blocks(entry.is_regular_file() ? entry.file_size() : 1);
  return bytes;
}

class FullDisk : public testing::TestWithParam<Command> {
 protected:
  Result<TrainSummary> run_on(Env& env, const std::string& out, const std::vector<std::string>& more = {}) const {
    return GetParam()(env, out, kSteps, more);
  }
  // A run that nothing disturbs, in "straight".
  void run_straight() {
    ASSERT_OK(run_on(counting_, "straight"));
    expected_ = bits_of_run("straight", kSteps);
  }

  TinyTask task_;
  InFolder inside_{task_.path()};
  FaultEnv counting_{default_env()};
  std::map<std::string, std::string> expected_;
};

TEST_P(FullDisk, ARunDoesNotStartWithoutRoomForTwoCheckpoints) {
  run_straight();
  const uint64_t one = size_of("straight/global_step_7");
  FaultEnv env(default_env());
  env.report_free(one * 3 / 2);
  const auto refused = run_on(env, "out");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kDisk);
  EXPECT_THAT(refused.error().to_string(),
              AllOf(HasSubstr("no room for two more checkpoints of"), HasSubstr(" are needed and "),
                    HasSubstr("trainer.default_local_dir")));
  EXPECT_FALSE(default_env().exists("out")) << "refused before anything is written or set aside";
  // The size is known before the first step: a little more than twice that of the saved one is enough.
  env.report_free(one * 21 / 10);
  ASSERT_OK(run_on(env, "out"));
  expect_same_bits(bits_of_run("out", kSteps), expected_, "with just enough room");
  // A finished run saves nothing more.
  env.report_free(0);
  ASSERT_OK(run_on(env, "out"));
}

TEST_P(FullDisk, AResumeCountsWhatRetentionFrees) {
  run_straight();
  const uint64_t one = size_of("straight/global_step_7");
  FaultEnv cut(default_env());
  cut.crash_at(announcement_of(counting_, "global_step_3") + 1);
  EXPECT_FALSE(run_on(cut, "out").ok());
  FaultEnv env(default_env());
  env.report_free(one * 11 / 10);
  const auto refused = run_on(env, "out", {"trainer.max_actor_ckpt_to_keep=null"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("no room for two more checkpoints"));
  ASSERT_OK(run_on(env, "out"));  // two checkpoints: one goes when the next is safe
  expect_same_bits(bits_of_run("out", kSteps), expected_, "resumed");
}

// The disk is full for a moment while step 3 is written and saved; there is room again before the next save.
TEST_P(FullDisk, OneFailedSaveCostsNothing) {
  run_straight();
  const int64_t begin = announcement_of(counting_, "global_step_2") + 1;
  const int64_t end = announcement_of(counting_, "global_step_3");
  int num_failed = 0;
  for (int64_t k = begin; k <= end; k += 5) {
    FaultEnv env(default_env());
    env.full_from(k, k % 2 == 0 ? ENOSPC : EDQUOT, 3);
    testing::internal::CaptureStderr();
    const auto done = run_on(env, "out");
    const std::string console = testing::internal::GetCapturedStderr();
    const std::string where = "from operation " + std::to_string(k) + ", " + env.operations()[static_cast<size_t>(k)];
    ASSERT_TRUE(done.ok()) << where << ": " << done.error().to_string();
    expect_same_bits(bits_of_run("out", kSteps), expected_, where);
    if (console.find("SAVE FAILED") != std::string::npos) {
      ++num_failed;
      EXPECT_THAT(console, HasSubstr("the last good checkpoint is out/global_step_2")) << where;
      EXPECT_THAT(console, HasSubstr("saving works again after 1 failed save")) << where;
      EXPECT_THAT(default_env().read_file("out/log.txt").value(), HasSubstr("SAVE FAILED (1 in a row"));
      const std::vector<Json> rows = rows_of("out/metrics.jsonl");
      ASSERT_EQ(rows.size(), static_cast<size_t>(kSteps));
      EXPECT_EQ(rows[3]["perf/failed_saves"], 1.0) << where;
      EXPECT_EQ(rows[4]["perf/failed_saves"], 0.0) << where;
    }
    ASSERT_OK(remove_tree(default_env(), "out"));
  }
  EXPECT_GT(num_failed, 2);
}

TEST_P(FullDisk, ThreeFailedSavesInARowStopTheRun) {
  run_straight();
  FaultEnv env(default_env());
  env.full_from(announcement_of(counting_, "global_step_2") + 1, ENOSPC);
  const auto stopped = run_on(env, "out");
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kDisk);
  EXPECT_THAT(stopped.error().to_string(),
              AllOf(HasSubstr("3 saves in a row failed; the checkpoint global_step_5 could not be saved"),
                    HasSubstr("the last good checkpoint is out/global_step_2"), HasSubstr("the disk is full")));
  ASSERT_OK(verify_checkpoint(default_env(), "out/global_step_2"));
  // After we make room, the same command continues.
  FaultEnv healthy(default_env());
  ASSERT_OK(run_on(healthy, "out"));
  expect_same_bits(bits_of_run("out", kSteps), expected_, "resumed");
}

INSTANTIATE_TEST_SUITE_P(Of, FullDisk, testing::Values(&train_on, &sft_on),
                         [](const auto& param) { return param.param == &train_on ? "train" : "sft"; });

// With one save to come, there is nothing that the next could replace.
TEST_P(FullDisk, ARunThatSavesOnceNeedsRoomForOne) {
  run_straight();
  const uint64_t one = size_of("straight/global_step_7");
  const std::vector<std::string> once{"trainer.save_freq=-1"};
  FaultEnv env(default_env());
  env.report_free(one * 9 / 10);
  const auto refused = run_on(env, "out", once);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("there is no room for one more checkpoint of"));
  env.report_free(one * 11 / 10);
  ASSERT_OK(run_on(env, "out", once));
}

// A disk that is full for a moment does not cost the last save.
TEST_P(FullDisk, TheLastSaveIsTriedAgain) {
  run_straight();
  const int64_t begin = announcement_of(counting_, "global_step_6") + 1;
  const int64_t end = announcement_of(counting_, "global_step_7");
  int num_again = 0;
  for (int64_t k = begin + 2; k <= end; k += 9) {
    FaultEnv env(default_env());
    env.full_from(k, ENOSPC, 3);
    testing::internal::CaptureStderr();
    const auto done = run_on(env, "out");
    const std::string console = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(done.ok()) << k << ": " << done.error().to_string();
    expect_same_bits(bits_of_run("out", kSteps), expected_, "from operation " + std::to_string(k));
    if (console.find("the last save failed and is tried again (2 of 3): ") != std::string::npos) ++num_again;
    EXPECT_THAT(console, testing::Not(HasSubstr("SAVE FAILED"))) << "it did not fail in the end";
    ASSERT_OK(remove_tree(default_env(), "out"));
  }
  EXPECT_GT(num_again, 1);
}

// What --dry-run says of a checkpoint's size, against one that was saved.
TEST(DryRun, KnowsTheSizeOfACheckpoint) {
  const TinyTask task;
  const InFolder inside(task.path());
  const std::vector<std::vector<std::string>> cases{
      {},
      {"trainer.save_dtype=bfloat16"},
      {"trainer.save_dtype=stored"},
      {"model.dtype=float64"},
      {"model.lora_rank=4"},
      {"model.lora_rank=4", "trainer.save_merged_lora=true"},
      {"algorithm.adv_estimator=gae", "~algorithm.adv_params"},
      {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "actor.optim.groups.a.match=embed|mlp",
       "actor.optim.groups.a.freeze=true", "critic.optim.groups.a.match=^model", "critic.optim.groups.a.freeze=true"}};
  const ResumeRequest fresh{"never", false};  // the run in the folder has another length
  for (const std::vector<std::string>& settings : cases) {
    FaultEnv env(default_env());
    env.report_free(uint64_t{1} << 40);
    SCOPED_TRACE(testing::PrintToString(settings));
    ASSERT_OK(train_on(env, "out", 1, settings));
    std::vector<std::string> same{"trainer.default_local_dir=out"};
    same.insert(same.end(), settings.begin(), settings.end());
    ASSERT_OK_AND_ASSIGN(const LoadedConfig config, load_config(default_env(), "rl.toml", same));
    ASSERT_OK_AND_ASSIGN(const std::string text, dry_run(env, config, ConfigUse::kTrain, /*json=*/true, fresh));
    ASSERT_OK_AND_ASSIGN(const Json plan, parse_json(text, "the plan"));
    uint64_t saved = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator("out/global_step_1"))
      saved += entry.is_regular_file() ? entry.file_size() : 0;
    const auto told = plan["checkpoint_bytes"].get<uint64_t>();
    EXPECT_LE(told, saved);
    EXPECT_GE(told + (uint64_t{32} << 10), saved) << "settings, manifest and the files' headers";
    EXPECT_EQ(plan["free_bytes"], uint64_t{1} << 40);
    ASSERT_OK_AND_ASSIGN(const std::string shown, dry_run(env, config, ConfigUse::kTrain, /*json=*/false, fresh));
    EXPECT_THAT(shown, HasSubstr("for each checkpoint; " + format_bytes(uint64_t{1} << 40) + " are free at out"));
    ASSERT_OK(remove_tree(default_env(), "out"));
  }
}

// No save follows the last one, so its failure stops the run.
TEST(FullDiskAtTheEnd, FailsTheRunAndNamesTheLastGoodCheckpoint) {
  const TinyTask task;
  const InFolder inside(task.path());
  const std::vector<std::string> charts{"trainer.rollout_data_dir=null", "trainer.logger=[\"tensorboard\"]"};
  FaultEnv plain(default_env());
  ASSERT_OK(train_on(plain, "straight", 3, charts));
  FaultEnv full(default_env());
  full.disk_full_after(size_of("straight/global_step_3") * 3 / 2);
  full.report_free(uint64_t{1} << 40);
  const auto stopped = train_on(full, "out", 3, charts);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kDisk);
  EXPECT_THAT(stopped.error().to_string(),
              AllOf(HasSubstr("2 saves in a row failed; the checkpoint global_step_3 could not be saved"),
                    HasSubstr("the last good checkpoint is out/global_step_1")));
  FaultEnv healthy(default_env());
  ASSERT_OK(train_on(healthy, "out", 3, charts));
  expect_same_bits(bits_of_run("out", 3), bits_of_run("straight", 3), "resumed");
}

// Rows and completions wait in memory, so that every checkpoint has those of its steps.
TEST(FullDiskForRows, TheRunStopsBeforeTooManyStepsWait) {
  const TinyTask task;
  const InFolder inside(task.path());
  FaultEnv counting(default_env());
  const std::vector<std::string> rare{"trainer.save_freq=-1"};
  ASSERT_OK(train_on(counting, "straight", kSteps, rare));
  const std::vector<std::string>& all = counting.operations();
  int64_t second = 0;  // the first operation of step 2's completions
  for (size_t i = 0; i < all.size() && second == 0; ++i) {
    if (all[i].find("/dump/.tmp_2.jsonl") != std::string::npos) second = static_cast<int64_t>(i) + 1;
  }
  ASSERT_GT(second, 0);
  ASSERT_OK(default_env().create_dirs("out/dump"));
  ASSERT_OK(write_file(default_env(), "out/dump/.tmp_notes", "of somebody else"));
  ASSERT_OK(write_file(default_env(), "out/dump/.tmp_4.jsonl.0123456789ab", "of a run that was killed"));
  FaultEnv full(default_env());
  full.full_from(second, ENOSPC);
  const auto stopped = train_on(full, "out", kSteps, rare);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::kDisk);
  EXPECT_EQ(default_env().list_dir("out/dump").value(), (std::vector<std::string>{".tmp_notes", "1.jsonl"}))
      << "no torn file";
  // The disk is full for two steps. In the end all completions are complete.
  FaultEnv shortly(default_env());
  ASSERT_OK(remove_tree(default_env(), "out"));
  shortly.full_from(second, ENOSPC, 12);
  ASSERT_OK(train_on(shortly, "out", kSteps, rare));
  expect_same_bits(bits_of_run("out", kSteps), bits_of_run("straight", kSteps), "full for a while");
}

// The same on a real file system, a small tmpfs in a mount namespace.
TEST(FullDiskForReal, TheProgramRefusesGoesOnAndStops) {
  const TinyTask task;
  if (run("unshare -Urm mount -t tmpfs -o size=1m none .", task.path()).code != 0)
    GTEST_SKIP() << "this machine allows no mounts in a user namespace";
  const std::string train = program() +
                            " train rl.toml trainer.default_local_dir=disk/out"
                            " trainer.total_training_steps=7 trainer.max_actor_ckpt_to_keep=1";
  ASSERT_OK(default_env().create_dirs(task.path() / "disk"));
  ASSERT_EQ(run(train, task.path()).code, 0);
  const uint64_t one = size_of(task.path() / "disk/out/global_step_7");
  ASSERT_OK(remove_tree(default_env(), task.path() / "disk/out"));
  const auto on_tmpfs = [&](uint64_t bytes, const std::string& commands) {
    return run(
        "unshare -Urm sh -c 'mount -t tmpfs -o size=" + std::to_string(bytes) + " none disk && " + commands + "'",
        task.path());
  };
  const Outcome refused = on_tmpfs(one, train);
  EXPECT_EQ(refused.code, 6) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("no room for two more checkpoints"));
  // After the first checkpoint, a file in the run's folder fills the disk. When it is deleted, the same command
  // finishes.
  const std::string filler =
      "(for i in $(seq 30000); do [ -e disk/out/latest ] && break; sleep 0.01; done; "
      "while [ -e disk/out ]; do cat /dev/zero >> disk/filler 2> /dev/null; sleep 0.01; done) & filler=$!; ";
  const Outcome stopped =
      on_tmpfs(one * 4, filler + train + " trainer.total_training_steps=400; code=$?; kill $filler; wait $filler; " +
                            "rm disk/filler; " + train + " --allow-change && exit $code");
  EXPECT_EQ(stopped.code, 6) << stopped.output;
  EXPECT_THAT(stopped.output, AllOf(HasSubstr("SAVE FAILED (1 in a row"), HasSubstr("3 saves in a row failed"),
                                    HasSubstr("No space left on device"),
                                    HasSubstr("the last good checkpoint is disk/out/global_step_"),
                                    HasSubstr("resumed from disk/out/global_step_")));
}

}  // namespace
}  // namespace mortise::test
