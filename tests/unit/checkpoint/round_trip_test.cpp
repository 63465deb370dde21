// Saving and loading without faults, and the refusal of every kind of damage.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "foundation/base/rng.h"
#include "unit/checkpoint/run_state.h"

namespace mortise {
namespace {

using test::error_of;
using test::fast_env;
using test::resumed_step;
using test::save_place;
using test::save_step;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Checkpoint, RoundTripAndLayout) {
  const test::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, save_step(default_env(), dir.path(), 7));
  EXPECT_TRUE(saved.warnings.empty());
  EXPECT_EQ(saved.path, dir / "global_step_7");
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_7", "latest"));
  EXPECT_EQ(dir.read("latest"), "global_step_7\n");
  EXPECT_THAT(*default_env().list_dir(saved.path),
              ElementsAre("huggingface", "manifest.json", "state.json", "state.safetensors"));
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 7);
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), saved.path));
  EXPECT_EQ(manifest.place.step, 7);
  EXPECT_EQ(manifest.info.at("mortise"), "test");
  EXPECT_EQ(manifest.entries.size(), 3u);
}

TEST(Checkpoint, ScalarsOfEveryKindReadBackExactly) {
  struct Odd final : Stateful {
    [[nodiscard]] std::string state_name() const override { return "odd"; }
    Result<> save_state(StateWriter& writer) const override {
      writer.put_double("nan", std::nan(""));
      writer.put_double("inf", -std::numeric_limits<double>::infinity());
      writer.put_double("tiny", 5e-324);
      writer.put_double("third", 1.0 / 3);
      writer.put_double("minus_zero", -0.0);
      writer.put_int("min", std::numeric_limits<int64_t>::min());
      writer.put_uint("max", std::numeric_limits<uint64_t>::max());
      writer.put_bool("no", false);
      writer.put_text("text", "i:5 \"\n\xC3\xA9");
      writer.put_bytes("bytes", std::string("\0\xFF\n", 3));
      writer.put_bytes("none", "");
      return {};
    }
    Result<> load_state(StateReader& reader) override {
      EXPECT_TRUE(std::isnan(TRY(reader.get_double("nan"))));
      EXPECT_EQ(TRY(reader.get_double("inf")), -std::numeric_limits<double>::infinity());
      EXPECT_EQ(TRY(reader.get_double("tiny")), 5e-324);
      EXPECT_EQ(TRY(reader.get_double("third")), 1.0 / 3);
      EXPECT_TRUE(std::signbit(TRY(reader.get_double("minus_zero"))));
      EXPECT_EQ(TRY(reader.get_int("min")), std::numeric_limits<int64_t>::min());
      EXPECT_EQ(TRY(reader.get_uint("max")), std::numeric_limits<uint64_t>::max());
      EXPECT_EQ(TRY(reader.get_bool("no")), false);
      EXPECT_EQ(TRY(reader.get_text("text")), "i:5 \"\n\xC3\xA9");
      EXPECT_EQ(TRY(reader.get_bytes("bytes")), std::string("\0\xFF\n", 3));
      EXPECT_EQ(TRY(reader.get_bytes("none")), "");
      loaded = true;
      return {};
    }
    bool loaded = false;
  } odd;
  const test::TempDir dir;
  StatefulRegistry registry;
  ASSERT_OK(registry.add(odd));
  CheckpointRequest request;
  request.place.step = 1;
  request.state = *registry.save();
  ASSERT_OK_AND_ASSIGN(const SavedCheckpoint saved, CheckpointWriter(default_env(), dir.path()).save(request));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(default_env(), saved.path));
  ASSERT_OK(checkpoint.load_into(registry));
  EXPECT_TRUE(odd.loaded);
}

TEST(Checkpoint, NoneAtAll) {
  const test::TempDir dir;
  EXPECT_EQ(resumed_step(default_env(), dir / "no_such_run"), 0);
  dir.write("global_step_x/f", ""), dir.write("global_step_007/f", ""), dir.write("latest", "global_step_9\n");
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 0);
}

TEST(Checkpoint, TheSameStateGivesTheSameBytes) {
  const test::TempDir a, b;
  ASSERT_OK(save_step(fast_env(), a.path(), 3));
  ASSERT_OK(save_step(fast_env(), b.path(), 3));
  EXPECT_EQ(a.read("global_step_3/manifest.json"), b.read("global_step_3/manifest.json"));
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  dir.write("global_step_3/state.json", "{}");
  EXPECT_FALSE(verify_checkpoint(default_env(), dir / "global_step_3").ok());
  EXPECT_THAT(error_of(verify_checkpoint(default_env(), dir / "global_step_4")),
              testing::HasSubstr("the checkpoint does not exist"));
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 3);
  EXPECT_THAT(*default_env().list_dir(dir.path()), ElementsAre("global_step_3", "latest"));
}

TEST(Checkpoint, DeletingAnyEntryIsRefusedByName) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, verify_checkpoint(default_env(), dir / "global_step_3"));
  std::vector<std::string> entries{"manifest.json"};
  for (const ManifestEntry& entry : manifest.entries) entries.push_back(entry.path);
  ASSERT_EQ(entries.size(), 4U);
  for (const std::string& entry : entries) {
    ASSERT_OK(save_step(fast_env(), dir.path(), 3));
    ASSERT_OK(default_env().unlink(dir / "global_step_3" / entry));
    EXPECT_THAT(error_of(verify_checkpoint(default_env(), dir / "global_step_3")),
                HasSubstr("'" + entry + "' is missing"));
    EXPECT_THAT(error_of(find_newest_valid(default_env(), dir.path())), HasSubstr("no checkpoint can be loaded"));
  }
}

TEST(Checkpoint, FallsBackToTheOneBeforeWithAWarning) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  ASSERT_OK(save_step(fast_env(), dir.path(), 10));
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 10);
  dir.write("global_step_10/huggingface/config.json", "{\"step\": 11}");
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 3);
  ASSERT_OK_AND_ASSIGN(const auto found, find_newest_valid(default_env(), dir.path()));
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->warnings.size(), 1u);
  EXPECT_THAT(found->warnings[0],
              AllOf(HasSubstr("global_step_10"), HasSubstr("'huggingface/config.json' was changed")));
}

TEST(Checkpoint, NamesOfPlaces) {
  EXPECT_EQ(checkpoint_name({7, {}}), "global_step_7");
  EXPECT_EQ(checkpoint_name({7, 2}), "unfinished_step_8_update_2");
  const CheckpointPlace places[] = {{0, {}}, {0, 0}, {7, {}}, {7, 12}};
  for (const CheckpointPlace& place : places) EXPECT_EQ(parse_checkpoint_name(checkpoint_name(place)), place);
  for (const char* bad :
       {"", "global_step_", "global_step_x", "global_step_-1", "global_step_07", "unfinished_step_8", "step_1",
        "unfinished_step_0_update_0", "unfinished_step_8_update_", "unfinished_step_8_update_-1",
        "unfinished_step_8_update_01", "unfinished_step__update_1", "unfinished_step_9223372036854775808_update_1"})
    EXPECT_EQ(parse_checkpoint_name(bad), std::nullopt) << bad;
  EXPECT_LT((CheckpointPlace{7, {}}), (CheckpointPlace{7, 0}));
  EXPECT_LT((CheckpointPlace{7, 3}), (CheckpointPlace{8, {}}));
}

// A folder that was given another name does not pass for another place.
TEST(Checkpoint, ARenamedFolderIsPassedOver) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  ASSERT_OK(save_place(fast_env(), dir.path(), {4, 1}));
  ASSERT_OK(default_env().rename(dir / "unfinished_step_5_update_1", dir / "unfinished_step_5_update_2"));
  ASSERT_OK_AND_ASSIGN(const auto found, find_newest_valid(default_env(), dir.path()));
  EXPECT_EQ(found->ref.place.step, 3);
  EXPECT_THAT(found->warnings, ElementsAre(HasSubstr("its manifest is of unfinished_step_5_update_1")));
}

TEST(Checkpoint, LatestWinsOverAnAbandonedLine) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 20));
  ASSERT_OK(save_step(fast_env(), dir.path(), 15));  // after a resume from before 20
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 15);
  ASSERT_OK(default_env().unlink(dir / "latest"));
  EXPECT_EQ(resumed_step(default_env(), dir.path()), 20);
}

// Any flipped bit and any truncation of any file of a checkpoint is found, and the one before it is used.
TEST(Checkpoint, BitFlipsAndTruncationsAreFound) {
  const test::TempDir dir;
  ASSERT_OK(save_step(fast_env(), dir.path(), 2));
  ASSERT_OK(save_step(fast_env(), dir.path(), 3));
  const std::vector<std::string> files{"manifest.json", "state.json", "state.safetensors", "huggingface/config.json"};
  const int rounds = std::getenv("MORTISE_LONG") != nullptr ? 2000 : 200;
  RandomStream random({.seed = 9});
  for (int round = 0; round < rounds; ++round) {
    const std::string name = "global_step_3/" + files[random.next_below(files.size())];
    const std::string good = dir.read(name);
    std::string bad = good;
    const uint64_t at = random.next_below(good.size());
    if (round % 5 == 4)
      bad.resize(at);
    else
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.next_below(8)));
    dir.write(name, bad);
    ASSERT_FALSE(verify_checkpoint(default_env(), dir / "global_step_3").ok())
        << name << " at " << at << " in round " << round;
    ASSERT_OK_AND_ASSIGN(const auto found, find_newest_valid(default_env(), dir.path()));
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->ref.place.step, 2);
    ASSERT_THAT(found->warnings, ElementsAre(HasSubstr("skipped a checkpoint")));
    dir.write(name, good);
  }
  EXPECT_OK(verify_checkpoint(default_env(), dir / "global_step_3"));
}

TEST(Checkpoint, RefusesToWriteOutsideOrOverItsOwnFiles) {
  const test::TempDir dir;
  for (const char* path : {"../x", "/x", "a/../b", "", "a//b", "manifest.json", "state.json"}) {
    CheckpointRequest request;
    request.place.step = 1;
    request.files.push_back(checkpoint_text_file(path, "x"));
    EXPECT_FALSE(CheckpointWriter(default_env(), dir / "run").save(request).ok()) << path;
    EXPECT_THAT(*default_env().list_dir(dir / "run"), ElementsAre()) << path;
  }
}

}  // namespace
}  // namespace mortise
