// The power fails at any operation of a whole run, and any part of the unsynced data is lost, names included. What the
// run reported as saved still loads. The run continues from it to the same bits, with a row for every step.
#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "foundation/base/rng.h"
#include "in_process.h"
#include "support/power_loss_env.h"

namespace mortise::test {
namespace {

constexpr int64_t kRunSteps = 3;

// The newest checkpoint that a save had reported when operation `end` failed: `latest` names it and is on the disk.
std::optional<CheckpointPlace> last_reported(const FaultEnv& env, const Path& run_dir, int64_t end) {
  std::optional<CheckpointPlace> named, reported;
  bool is_written = false;
  for (int64_t i = 0; i + 1 < end && i < static_cast<int64_t>(env.operations().size()); ++i) {
    const std::string& operation = env.operations()[static_cast<size_t>(i)];
    const std::string target = operation.substr(operation.rfind('/') + 1);
    if (operation.starts_with("rename ") && parse_checkpoint_name(target)) named = parse_checkpoint_name(target);
    if (operation.starts_with("rename ") && target == "latest") is_written = true;
    if (is_written && operation == "sync_dir " + run_dir.string()) reported = named, is_written = false;
  }
  return reported;
}

TEST(PowerLoss, AtAnyOperationOfARun) {
  const TinyTask task;
  const InFolder inside(task.path());
  const Path out = task.path() / "runs/out", straight = task.path() / "straight";
  const std::vector<std::string> settings{"trainer.save_freq_updates=2"};
  FaultEnv counting(default_env());
  ASSERT_OK(train_on(counting, straight.string(), kRunSteps, settings));
  const auto expected = bits_of_run(straight, kRunSteps);
  RandomStream random({.seed = 31});
  const int num_seeds = std::getenv("MORTISE_LONG") != nullptr ? 500 : 6;
  int num_reported = 0;
  for (int seed = 0; seed < num_seeds; ++seed) {
    const auto k = 1 + static_cast<int64_t>(random.next_below(static_cast<uint64_t>(counting.num_operations())));
    const std::string where = "seed " + std::to_string(seed) + ", operation " + std::to_string(k);
    PowerLossEnv disk(default_env());
    FaultEnv env(disk, /*pass_sync=*/true);
    env.crash_at(k);
    const auto stopped = train_on(env, out.string(), kRunSteps, settings);
    EXPECT_FALSE(stopped.ok()) << where;
    const std::optional<CheckpointPlace> reported = last_reported(env, out, k);
    disk.lose_power(static_cast<uint64_t>(seed));
    const auto found = find_newest_valid(default_env(), out);
    ASSERT_TRUE(found.ok()) << where << ": " << found.error().to_string();
    if (reported) {
      ASSERT_TRUE(found->has_value()) << where;
      ASSERT_GE((*found)->ref.place, *reported) << where;
      ++num_reported;
    }
    FaultEnv healthy(default_env());
    const auto resumed = train_on(healthy, out.string(), kRunSteps, settings);
    ASSERT_TRUE(resumed.ok()) << where << ": " << resumed.error().to_string();
    expect_same_bits(bits_of_run(out, kRunSteps), expected, where);
    ASSERT_OK(remove_tree(default_env(), task.path() / "runs"));
    if (HasFailure()) return;
  }
  EXPECT_GT(num_reported, num_seeds / 3);
}

}  // namespace
}  // namespace mortise::test
