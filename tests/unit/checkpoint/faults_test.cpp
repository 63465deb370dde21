// Faults at every operation of a save: an old or the new checkpoint loads, whole, and nothing is left ambiguous.
#include <gmock/gmock.h>

#include "support/fault_env.h"
#include "support/power_loss_env.h"
#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::error_of;
using test::fast_env;
using test::resumed_step;
using test::save_place;
using test::save_step;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr CheckpointWriterOptions kKeepOne{.keep_last = 1, .sync = true};

// Sets the fault of the environment: one failing call, or no operation from there on, as after kill -9.
using Arm = void (*)(test::FaultEnv&, int64_t);
void fail_once(test::FaultEnv& env, int64_t k) { env.fail_at(k); }
void crash(test::FaultEnv& env, int64_t k) { env.crash_at(k); }

CheckpointPlace newest(const Path& run_dir) {
  const auto found = find_newest_valid(default_env(), run_dir);
  EXPECT_OK(found);
  return found.ok() && found->has_value() ? (*found)->ref.place : CheckpointPlace{-1, {}};
}

// Saves step 1 and, if `second` is set, a checkpoint inside the next step. Then saves `second` with the fault at its
// k-th operation, for every k, checks the result, and saves step 3 without a fault.
void enumerate(Arm arm, const CheckpointPlace& second) {
  for (int64_t k = 1;; ++k) {
    const test::TempDir dir;
    ASSERT_OK(save_step(fast_env(), dir.path(), 1, kKeepOne));
    if (second.update) ASSERT_OK(save_place(fast_env(), dir.path(), {1, 0}, kKeepOne));
    const CheckpointPlace first = newest(dir.path());
    test::FaultEnv env(default_env());
    arm(env, k);
    const Result<SavedCheckpoint> saved = save_place(env, dir.path(), second, kKeepOne);
    const std::string last =
        env.operations().empty()
            ? ""
            : env.operations()[std::min<size_t>(static_cast<size_t>(k), env.operations().size()) - 1];
    ASSERT_THAT(resumed_step(default_env(), dir.path()), AnyOf(1, second.step)) << "operation " << k << ": " << last;
    const CheckpointPlace place = newest(dir.path());
    ASSERT_TRUE(place == first || place == second) << "operation " << k << ": " << last;
    if (saved.ok() && saved->warnings.empty()) {
      ASSERT_EQ(place, second) << "reported as saved, operation " << k << ": " << last;
    }
    // The next save works without help and leaves exactly one checkpoint.
    ASSERT_OK(save_step(fast_env(), dir.path(), 3, kKeepOne));
    ASSERT_EQ(resumed_step(default_env(), dir.path()), 3);
    ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_3", "latest"))
        << k << ": " << last;
    if (k > env.num_operations()) {
      EXPECT_GT(k, 25);  // the save has so many places to fail
      EXPECT_TRUE(saved.ok());
      return;
    }
  }
}

TEST(CheckpointFaults, EveryFailingCall) { enumerate(fail_once, {2, {}}); }
TEST(CheckpointFaults, EveryCrash) { enumerate(crash, {2, {}}); }
TEST(CheckpointFaults, EveryFailingCallWhileReplacingTheSameStep) { enumerate(fail_once, {1, {}}); }
TEST(CheckpointFaults, EveryCrashWhileReplacingTheSameStep) { enumerate(crash, {1, {}}); }
TEST(CheckpointFaults, EveryFailingCallInsideAStep) { enumerate(fail_once, {1, 1}); }
TEST(CheckpointFaults, EveryCrashInsideAStep) { enumerate(crash, {1, 1}); }
TEST(CheckpointFaults, EveryCrashWhileReplacingInsideAStep) { enumerate(crash, {1, 0}); }

TEST(CheckpointFaults, PowerLossAtEveryOperation) {
  const uint64_t num_seeds = std::getenv("MORTISE_LONG") != nullptr ? 20 : 3;
  for (int64_t k = 1;; ++k) {
    bool finished = false;
    for (uint64_t seed = 0; seed < num_seeds; ++seed) {
      const test::TempDir dir;
      test::PowerLossEnv disk(default_env());
      test::FaultEnv env(disk, /*pass_sync=*/true);
      ASSERT_OK(save_step(env, dir.path(), 1, kKeepOne));
      env.crash_at(k);
      const Result<SavedCheckpoint> saved = save_step(env, dir.path(), 2, kKeepOne);
      finished = k > env.num_operations();
      disk.lose_power(seed * 1000 + static_cast<uint64_t>(k));
      const int64_t step = resumed_step(default_env(), dir.path());
      ASSERT_THAT(step, AnyOf(1, 2)) << "operation " << k << " seed " << seed;
      if (saved.ok() && saved->warnings.empty()) {
        ASSERT_EQ(step, 2) << "operation " << k << " seed " << seed;
      }
    }
    if (finished) break;
  }
}

TEST(CheckpointFaults, DiskFullAtEveryByteCountLeavesTheLastGoodOne) {
  for (uint64_t room = 0;; room += 61) {
    const test::TempDir dir;
    ASSERT_OK(save_step(fast_env(), dir.path(), 1, kKeepOne));
    test::FaultEnv env(default_env());
    env.disk_full_after(room);
    const Result<SavedCheckpoint> saved = save_step(env, dir.path(), 2, kKeepOne);
    if (!saved.ok()) {
      EXPECT_EQ(saved.error().kind, ErrorKind::kDisk);
      EXPECT_THAT(error_of(saved), HasSubstr("the disk is full"));
      ASSERT_EQ(resumed_step(default_env(), dir.path()), 1) << room;
      ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_1", "latest")) << room;
      continue;
    }
    ASSERT_THAT(resumed_step(default_env(), dir.path()), saved->warnings.empty() ? 2 : 1)
        << room;  // no room for 'latest'
    if (saved->warnings.empty()) break;
  }
}

// The disk or the quota is full from any operation of a save on; a user then makes room.
TEST(CheckpointFaults, AFullDiskFromAnyOperationOnLeavesTheLastGoodOne) {
  for (const int code : {ENOSPC, EDQUOT}) {
    for (int64_t k = 1;; ++k) {
      const test::TempDir dir;
      ASSERT_OK(save_step(fast_env(), dir.path(), 1, kKeepOne));
      test::FaultEnv env(default_env());
      env.full_from(k, code);
      const Result<SavedCheckpoint> saved = save_step(env, dir.path(), 2, kKeepOne);
      if (!saved.ok()) {
        EXPECT_EQ(saved.error().kind, ErrorKind::kDisk);
        EXPECT_THAT(error_of(saved), HasSubstr(code == ENOSPC ? "the disk is full" : "your quota on this disk"));
        ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_1", "latest")) << k;
      }
      const bool is_announced = saved.ok() && saved->warnings.empty();
      ASSERT_EQ(resumed_step(default_env(), dir.path()), is_announced ? 2 : 1) << k;
      const bool is_beyond = k > env.num_operations();
      env.heal();
      ASSERT_OK(save_step(env, dir.path(), 3, kKeepOne));
      ASSERT_EQ(resumed_step(default_env(), dir.path()), 3) << k;
      ASSERT_THAT(*default_env().list_dir(dir.path()), testing::ElementsAre("global_step_3", "latest")) << k;
      if (is_beyond) {
        EXPECT_GT(k, 25);
        break;
      }
    }
  }
}

TEST(CheckpointFaults, AFailingWriterOfAFileStopsTheSave) {
  const test::TempDir dir;
  CheckpointRequest request;
  request.place.step = 4;
  request.files.push_back({"x", [](WritableFile&) -> Result<> {
                             return Error{ErrorKind::kNumerics, "weights are not finite", "", ""};
                           }});
  const auto saved = CheckpointWriter(default_env(), dir.path()).save(request);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().kind, ErrorKind::kNumerics);
  EXPECT_TRUE(default_env().list_dir(dir.path())->empty());
}

}  // namespace
}  // namespace mortise
