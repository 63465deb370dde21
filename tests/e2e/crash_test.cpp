// kill -9 at random moments, many of them inside a save, and resume: the same bits as a run that nothing stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "checkpoint/reader.h"
#include "foundation/base/rng.h"
#include "process.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

constexpr int64_t kSteps = 16;

bool is_long() { return std::getenv("MORTISE_LONG") != nullptr; }

// What saves were making, replacing or deleting when they were cut off.
std::set<std::string> leftovers(const Path& out) {
  std::set<std::string> names;
  const std::vector<std::string> all = default_env().list_dir(out).value();
  for (const std::string& name : all) {
    if (name.starts_with(".tmp_") || name.starts_with(".replaced_") || name.starts_with(".deleting_"))
      names.insert(name);
  }
  return names;
}

// Kills runs of one command until `wanted` kills are done, at least a third of them inside a save; each run goes on
// after every kill, and is compared with the straight one when it comes to its end.
class Killer {
 public:
  Killer(std::string command, std::vector<std::vector<std::string>> settings, uint64_t seed)
      : command_(std::move(command)), settings_(std::move(settings)), random_({.seed = seed}) {}

  void run(int wanted) {
    straight_run();
    while (!testing::Test::HasFailure() && (num_kills_ < wanted || num_inside_ * 3 < num_kills_)) chain(wanted);
    std::printf("%s: %d kills, %d of them inside a save, %d runs, %d went on inside a step\n", command_.c_str(),
                num_kills_, num_inside_, num_runs_, num_unfinished_);
  }

 private:
  void straight_run() {
    const Stopwatch watch;
    const Outcome outcome = task_.mortise(command_, "straight");
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    run_us_ = watch.elapsed_ns() / 1000;
    expected_ = bits_of_run(task_.path() / "straight", kSteps);
    ASSERT_EQ(rows_of(task_.path() / "straight/metrics.jsonl").size(), static_cast<size_t>(kSteps));
  }

  // One run from its start to its end, through as many kills as it takes or are left.
  void chain(int wanted) {
    const std::string name = "run" + std::to_string(num_runs_++);
    const Path out = task_.path() / name;
    ASSERT_OK(default_env().create_dirs(out));
    CheckpointPlace newest{-1, {}};
    while (!testing::Test::HasFailure()) {
      const std::set<std::string> before = leftovers(out);
      const int64_t num_aside = count_aside(name);
      const auto& more = settings_[random_.next_below(settings_.size())];
      FolderWatch watch(out);
      Process process(task_.words(command_, name, more), task_.path(), task_.path() / "console.txt");
      if (num_kills_ < wanted || num_inside_ * 3 < num_kills_) strike(process, watch);
      const int code = process.wait();
      const std::string console = default_env().read_file(task_.path() / "console.txt").value();
      if (console.find("updates of the next") != std::string::npos) ++num_unfinished_;
      // It did go on from the checkpoint: a run that begins anew comes to the same bits.
      if (newest.step >= 0) {
        ASSERT_EQ(count_aside(name), num_aside) << "began anew beside a checkpoint\n" << console;
        ASSERT_TRUE(code != 0 || console.find("resumed from") != std::string::npos) << console;
      }
      if (code == 0) break;
      ASSERT_EQ(code, -SIGKILL) << console;
      ++num_kills_;
      const std::set<std::string> after = leftovers(out);
      num_inside_ += std::includes(before.begin(), before.end(), after.begin(), after.end()) ? 0 : 1;
      check_newest(out, newest);
    }
    if (testing::Test::HasFailure()) return;
    expect_same_bits(bits_of_run(out, kSteps), expected_, name + " after " + std::to_string(num_kills_) + " kills");
    EXPECT_EQ(leftovers(out), std::set<std::string>()) << name << " after " << num_kills_ << " kills";
    ASSERT_OK(remove_tree(default_env(), out));
  }

  // Half of the kills at any moment of the run, half at any moment after a save has begun.
  void strike(Process& process, FolderWatch& watch) {
    if (random_.next_below(2) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_.next_below(static_cast<uint64_t>(run_us_))));
    } else {
      if (!watch.wait_for(".tmp_", 1 + static_cast<int64_t>(random_.next_below(6)), process)) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_.next_below(kSaveUs)));
    }
    process.signal(SIGKILL);
  }

  // There is a checkpoint, whole, and no older one than before.
  static void check_newest(const Path& out, CheckpointPlace& newest) {
    const auto found = find_newest_valid(default_env(), out);
    ASSERT_OK(found);
    if (!found->has_value()) {
      ASSERT_EQ(newest.step, -1) << "a checkpoint was lost";
      return;
    }
    ASSERT_GE((*found)->ref.place, newest);
    newest = (*found)->ref.place;
  }

  // Folders of earlier runs that a new beginning has moved out of its way.
  [[nodiscard]] int64_t count_aside(const std::string& name) const {
    const std::vector<std::string> all = default_env().list_dir(task_.path()).value();
    return std::ranges::count_if(all, [&](const std::string& other) { return other.starts_with(name + ".before_"); });
  }

  static constexpr uint64_t kSaveUs = 20'000;  // about how long one takes
  TinyTask task_;
  std::string command_;
  std::vector<std::vector<std::string>> settings_;
  RandomStream random_;
  std::map<std::string, std::string> expected_;
  int64_t run_us_ = 0;
  int num_kills_ = 0, num_inside_ = 0, num_runs_ = 0, num_unfinished_ = 0;
};

TEST(Crash, KilledAtAnyMomentOfTraining) {
  Killer killer("train", {{}, {"trainer.save_freq_updates=1"}, {"trainer.save_freq_updates=2"}}, 11);
  killer.run(is_long() ? 350 : 14);
}

TEST(Crash, KilledAtAnyMomentOfAWarmStart) {
  Killer killer("sft", {{}, {"trainer.max_actor_ckpt_to_keep=1"}}, 12);
  killer.run(is_long() ? 150 : 6);
}

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

// Behind an update inside a step, the step's samples are those of the checkpoint: another seed of sampling changes
// none.
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
    int tries = 0;
    while (!kill_inside_step_3(task, name, settings, update)) ASSERT_LT(++tries, 20) << "no kill was fast enough";
    const Outcome resumed = task.mortise("train", name, other_seed);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find(name + "/unfinished_step_3_update_"), std::string::npos) << resumed.output;
    const auto bits = bits_of_run(task.path() / name, 4);
    EXPECT_EQ(to_step_4(bits.at("metrics.jsonl")), to_step_4(expected.at("metrics.jsonl")));
    EXPECT_EQ(bits.at("dump/3.jsonl"), expected.at("dump/3.jsonl"));
    EXPECT_NE(bits.at("dump/4.jsonl"), expected.at("dump/4.jsonl"));  // the new seed counts from here on
  }
}

}  // namespace
}  // namespace mortise::test
