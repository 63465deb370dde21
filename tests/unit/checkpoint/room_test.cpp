// The room that the next saves need, against what saves really take.
#include "checkpoint/room.h"

#include <gmock/gmock.h>

#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::fast_env;
using test::save_place;
using test::save_step;

uint64_t blocks_below(const Path& folder) {
  uint64_t bytes = disk_blocks(1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    bytes += disk_blocks(entry.is_regular_file() ? entry.file_size() : 1);
  return bytes;
}

TEST(Room, AMeasuredCheckpointIsAsLargeAsASavedOne) {
  const test::TempDir dir;
  test::RunState state;
  state.at_step(12);
  state.weights.assign(5000, 1.5F);
  StatefulRegistry registry;
  ASSERT_OK(registry.add(state));
  CheckpointRequest request;
  request.place.step = 12;
  ASSERT_OK_AND_ASSIGN(request.state, registry.save());
  request.files.push_back(checkpoint_text_file("a/b/config.json", std::string(4097, 'x')));
  request.files.push_back(checkpoint_text_file("a/none", ""));
  ASSERT_OK_AND_ASSIGN(const uint64_t measured, measure_checkpoint(request));
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, CheckpointWriter(fast_env(), dir.path()).save(request));
  EXPECT_EQ(measured, blocks_below(saved.path));
  EXPECT_GT(measured, 5000 * sizeof(float));
}

// Needed for the next two saves, in checkpoints.
struct RoomCase {
  const char* what;
  std::vector<CheckpointPlace> existing;
  SavePlan plan;
  int64_t needed;
};

TEST(Room, RetentionFreesOnlyWhatASaveHasReplaced) {
  const test::TempDir sample;
  ASSERT_OK(save_step(fast_env(), sample.path(), 5));
  const uint64_t one = blocks_below(sample / "global_step_5");
  const RoomCase cases[] = {
      {"a fresh run that keeps all", {}, {.keep_last = 0}, 2},
      {"a fresh run that keeps one: the old one goes behind the new one", {}, {.keep_last = 1}, 2},
      {"all kept", {{1, {}}, {2, {}}}, {.place = {2, {}}, .keep_last = 0}, 2},
      {"one kept", {{2, {}}}, {.place = {2, {}}, .keep_last = 1}, 1},
      {"two kept, one there", {{2, {}}}, {.place = {2, {}}, .keep_last = 2}, 2},
      {"two kept, two there", {{1, {}}, {2, {}}}, {.place = {2, {}}, .keep_last = 2}, 1},
      {"more than are kept", {{1, {}}, {2, {}}, {3, {}}}, {.place = {3, {}}, .keep_last = 1}, 1},
      {"a later line of the run goes first", {{1, {}}, {4, {}}}, {.place = {1, {}}, .keep_last = 2}, 1},
      {"the same step again", {{4, {}}}, {.place = {3, {}}, .keep_last = 0}, 1},
      {"one inside a step goes with the next save", {{1, {}}, {1, 2}}, {.place = {1, {}}, .keep_last = 0}, 1},
      {"inside a step none between steps goes", {{1, {}}}, {.place = {1, {}}, .keep_last = 1, .inside_step = true}, 2},
      {"the next one inside a step replaces the one before",
       {{1, {}}, {1, 0}},
       {.place = {1, 0}, .keep_last = 1, .inside_step = true},
       1},
      {"nothing of an earlier run is removed", {{2, {}}}, {.keep_last = 1, .starts_over = true}, 2},
      {"ten saves, three kept", {}, {.num_saves = 10, .keep_last = 3}, 4},
  };
  for (const RoomCase& test_case : cases) {
    const test::TempDir dir;
    for (const CheckpointPlace& place : test_case.existing) ASSERT_OK(save_place(fast_env(), dir.path(), place));
    test::FaultEnv env(default_env());
    env.report_free(one);
    SavePlan plan = test_case.plan;
    plan.checkpoint_bytes = one;
    ASSERT_OK_AND_ASSIGN(const SaveRoom room, measure_room(env, dir.path(), plan));
    EXPECT_EQ(room.needed_bytes, one * static_cast<uint64_t>(test_case.needed)) << test_case.what;
    EXPECT_EQ(room.is_enough(), test_case.needed <= 1) << test_case.what;
    EXPECT_EQ(room.num_existing, static_cast<int64_t>(test_case.existing.size())) << test_case.what;
    EXPECT_EQ(room.existing_bytes, one * test_case.existing.size()) << test_case.what;
  }
}

TEST(Room, LeftoversOfKilledSavesCountAsFree) {
  const test::TempDir dir;
  dir.write(".tmp_global_step_9.abc/state.json", std::string(100'000, 'x'));
  const SavePlan plan{.checkpoint_bytes = 200'000};
  ASSERT_OK_AND_ASSIGN(const SaveRoom room, measure_room(default_env(), dir.path(), plan));
  EXPECT_EQ(room.needed_bytes, 400'000 - blocks_below(dir / ".tmp_global_step_9.abc"));
  ASSERT_OK_AND_ASSIGN(const SaveRoom elsewhere, measure_room(default_env(), dir / "not/yet", plan));
  EXPECT_EQ(elsewhere.needed_bytes, 400'000U);
  EXPECT_GT(elsewhere.free_bytes, 0U);
}

}  // namespace
}  // namespace mortise
