// kill -9 at random moments, at least a third of them inside a save, and resume: the same bits as a run that nothing
// stopped, in every configuration of run_table.h. A quarter of the runs are killed three times, the others once.
// MORTISE_LONG=1: a thousand kills in all, of runs of 24 steps. MORTISE_KILLS=n: n kills of each configuration, so that a
// thousand can be done in parts; MORTISE_SEED=n: at other moments; MORTISE_TEST_DEVICE=NAME: on that model.device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "checkpoint/reader.h"
#include "foundation/base/rng.h"
#include "process.h"
#include "run_table.h"
#include "support/bubblewrap.h"
#include "support/long_run.h"
#include "support/test_device.h"

namespace mortise::test {
namespace {

int64_t num_steps() { return is_long() ? 24 : 6; }
int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoi(text);
}
int num_wanted() { return from_environment("MORTISE_KILLS", is_long() ? 143 : 3); }

// How a process saves, drawn for each process. It does not change what the run learns.
const std::vector<std::vector<std::string>> kSaving{
    {}, {"trainer.save_freq_updates=1"}, {"trainer.save_freq_updates=2"}};
const std::vector<std::vector<std::string>> kSftSaving{{}, {"trainer.max_actor_ckpt_to_keep=1"}};

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

class Kill : public testing::TestWithParam<RunCase> {
 protected:
  void SetUp() override {
    uint64_t place = 0;
    while (std::string(run_table()[place].name) != GetParam().name) ++place;
    // Other moments for each configuration.
    random_ = RandomStream({.seed = 11 + place + 1000 * static_cast<uint64_t>(from_environment("MORTISE_SEED", 0))});
    task_.write("data/code.jsonl", code_rows());
    task_.write("data/mix.jsonl", mix_rows());
    settings_ = GetParam().settings;
    if (!named_device().empty()) settings_.push_back("model.device=" + named_device());
    if (tests_gpu()) settings_.push_back("model.attention_backend=libtorch");  // two runs may measure other times
    settings_.push_back(std::string(is_sft() ? "sft" : "trainer") +
                        ".total_training_steps=" + std::to_string(num_steps()));
  }

  [[nodiscard]] bool is_sft() const { return std::string(GetParam().command) == "sft"; }

  void run_straight() {
    const Stopwatch watch;
    const Outcome outcome = task_.mortise(GetParam().command, "straight", settings_);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    run_us_ = watch.elapsed_ns() / 1000;
    expected_ = bits_of_run(task_.path() / "straight", num_steps());
    ASSERT_EQ(rows_of(task_.path() / "straight/metrics.jsonl").size(), static_cast<size_t>(num_steps()));
  }

  // One run from its start to its end, through `wanted` kills, or fewer where it was faster.
  void chain(int wanted) {
    const std::string name = "run" + std::to_string(num_runs_++);
    const Path out = task_.path() / name;
    ASSERT_OK(default_env().create_dirs(out));
    CheckpointPlace newest{-1, {}};
    for (int kills = 0; !HasFailure();) {
      const std::set<std::string> before = leftovers(out);
      const int64_t num_aside = count_aside(name);
      std::vector<std::string> all = settings_;
      const auto& saving = is_sft() ? kSftSaving : kSaving;
      for (const std::string& setting : saving[random_.next_below(saving.size())]) all.push_back(setting);
      FolderWatch watch(out);
      Process process(task_.words(GetParam().command, name, all), task_.path(), task_.path() / "console.txt");
      if (kills < wanted) strike(process, watch);
      const int code = process.wait();
      const std::string console = default_env().read_file(task_.path() / "console.txt").value();
      if (console.find(" of the next\n") != std::string::npos) ++num_unfinished_;
      // Checks that the run resumed, because a run from scratch would give the same bits.
      if (newest.step >= 0) {
        ASSERT_EQ(count_aside(name), num_aside) << "began again next to a checkpoint\n" << console;
        ASSERT_TRUE(code != 0 || console.find("resumed from") != std::string::npos) << console;
      }
      if (code == 0) break;
      ASSERT_EQ(code, -SIGKILL) << console;
      ++kills;
      const std::set<std::string> after = leftovers(out);
      count_kill(!std::includes(before.begin(), before.end(), after.begin(), after.end()));
      check_newest(out, newest);
    }
    if (HasFailure()) return;
    expect_same_bits(bits_of_run(out, num_steps()), expected_,
                     name + " after " + std::to_string(num_kills_) + " kills");
    EXPECT_EQ(leftovers(out), std::set<std::string>()) << name << " after " << num_kills_ << " kills";
    ASSERT_OK(remove_tree(default_env(), out));
    for (int64_t i = count_aside(name); i > 0; --i)
      ASSERT_OK(remove_tree(default_env(), task_.path() / (name + ".before_" + std::to_string(i))));
  }

  // At any moment of the run; where too few have hit a save so far, soon after a save has begun.
  void strike(Process& process, FolderWatch& watch) {
    aims_at_save_ = num_inside_ * 3 <= num_kills_;
    if (!aims_at_save_) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_.next_below(static_cast<uint64_t>(run_us_))));
    } else {
      if (!watch.wait_for(".tmp_", 1 + static_cast<int64_t>(random_.next_below(6)), process)) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_.next_below(save_us_)));
    }
    process.signal(SIGKILL);
  }

  // Counts a kill. How long a save takes depends on the disk and on what else the machine does: the moments after its
  // beginning come closer until half of them hit it.
  void count_kill(bool was_inside) {
    ++num_kills_;
    num_inside_ += was_inside ? 1 : 0;
    if (aims_at_save_) save_us_ = was_inside ? std::min(save_us_ * 5 / 4 + 1, kLongestSaveUs) : save_us_ * 3 / 4 + 1;
  }

  // There is a complete checkpoint, at least as new as before.
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

  static constexpr uint64_t kLongestSaveUs = 20'000;
  uint64_t save_us_ = kLongestSaveUs;  // about how long one takes
  bool aims_at_save_ = false;
  TinyTask task_;
  std::vector<std::string> settings_;
  RandomStream random_{{}};
  std::map<std::string, std::string> expected_;
  int64_t run_us_ = 0;
  int num_kills_ = 0, num_inside_ = 0, num_runs_ = 0, num_unfinished_ = 0;
};

TEST_P(Kill, AtAnyMoment) {
  if (std::string(GetParam().name) == "code_reward") {
    const std::string reason = no_bubblewrap("runs with the code reward were not killed");
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  run_straight();
  const auto is_enough = [this] { return num_kills_ >= num_wanted() && num_inside_ * 3 >= num_kills_; };
  while (!HasFailure() && !is_enough() && num_kills_ < 20 * num_wanted()) chain(num_runs_ % 4 == 1 ? 3 : 1);
  EXPECT_GE(num_inside_ * 3, num_kills_) << "too few of the kills met a save";
  std::printf("%s: %d kills, %d of them inside a save, %d runs, %d went on inside a step\n", GetParam().name,
              num_kills_, num_inside_, num_runs_, num_unfinished_);
}

INSTANTIATE_TEST_SUITE_P(Of, Kill, testing::ValuesIn(run_table()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace mortise::test
