// What a checkpoint holds of a run, and what a resume compares with it.
#include "train/resume/run_state.h"

#include <gmock/gmock.h>

#include <memory>

#include "train/resume/run_inputs.h"

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

// What PluginStates needs of an instance.
struct FakePlugin {
  std::optional<std::string> state;
  Result<std::optional<std::string>> save_state() { return state; }
  Result<> load_state(std::string_view bytes) {
    state = std::string(bytes);
    return {};
  }
};

StateSnapshot saved(Stateful& object) {
  StatefulRegistry registry;
  EXPECT_OK(registry.add(object));
  return registry.save().value();
}
Result<> load_state(Stateful& object, const StateSnapshot& snapshot) {
  StatefulRegistry registry;
  TRY(registry.add(object));
  return registry.load(snapshot, "here");
}

TEST(RunCounters, AreOfTheirCommandAlone) {
  RunCounters run, other;
  run.step = 5;
  run.num_tokens = 77;
  const StateSnapshot snapshot = saved(run);
  other.kind = "sft";
  EXPECT_THAT(error_of(load_state(other, snapshot)), HasSubstr("is of `mortise train`, this is `mortise sft`"));
  // A validation reads those of a training run.
  StateReader reader("run", &snapshot, "here");
  ASSERT_OK(other.load(reader, "train"));
  EXPECT_EQ(other.step, 5);
  EXPECT_EQ(other.num_tokens, 77);
  EXPECT_EQ(other.kind, "sft");
}

TEST(OwedValidation, ComesBackWithTheNumbersOfItsStep) {
  OwedValidation before, after;
  EXPECT_EQ(before.last_final(7), 7);
  before.metrics.emplace();
  before.metrics->add_mean("actor/pg_loss", 0.3, 2);
  ASSERT_OK(load_state(after, saved(before)));
  ASSERT_TRUE(after.metrics.has_value());
  EXPECT_EQ(after.metrics->value("actor/pg_loss"), 0.3);
  EXPECT_EQ(after.last_final(7), 6) << "the line of step 7 is written again";
  ASSERT_OK(load_state(after, saved(*std::make_unique<OwedValidation>())));
  EXPECT_FALSE(after.metrics.has_value());
  ASSERT_OK(load_state(before, StateSnapshot()));  // a checkpoint of before there were any
}

TEST(PluginStates, ComeBackByRoleAndName) {
  FakePlugin with{"abc"}, without, fresh{"0"};
  PluginStates before, after;
  before.add("advantage:a", with);
  before.add("reward.0:b", without);
  const StateSnapshot snapshot = saved(before);
  after.add("advantage:a", fresh);
  after.add("reward.0:b", without);
  ASSERT_OK(load_state(after, snapshot));
  EXPECT_EQ(fresh.state, "abc");
  EXPECT_EQ(without.state, std::nullopt);
}

TEST(PluginStates, NoneStartsAnewInSilence) {
  FakePlugin plugin{"abc"}, other{"0"}, stateless;
  PluginStates before;
  before.add("advantage:a", plugin);
  const StateSnapshot snapshot = saved(before);
  // Another plugin with state, and one without.
  for (FakePlugin* now : {&other, &stateless}) {
    PluginStates after;
    after.add("advantage:b", *now);
    EXPECT_THAT(
        error_of(load_state(after, snapshot)),
        HasSubstr(now == &other ? "no state of the plugin advantage:b" : "state of advantage:a, a plugin that"));
    after.takes_changes = true;
    EXPECT_OK(load_state(after, snapshot));
    EXPECT_EQ(other.state, "0");
  }
  // A validation has only some of the run's plugins.
  PluginStates none;
  StateReader reader("plugins", &snapshot, "here");
  EXPECT_OK(none.load_own(reader));
}

TEST(RunInputs, WhatDiffersIsNamedAllAtOnce) {
  const auto inputs = [](const std::vector<std::string>& digests) {
    RunInputs out;
    const char* const names[] = {"reference", "tokenizer", "reward.0.path"};
    for (size_t i = 0; i < digests.size(); ++i) out.add(names[i], std::string("what ") + names[i], digests[i]);
    return out;
  };
  RunInputs before = inputs({"a", "b", "c"});
  const StateSnapshot snapshot = saved(before);
  RunInputs same = inputs({"a", "b", "c"}), fewer = inputs({"a"}), other = inputs({"x", "b", "z"});
  EXPECT_OK(load_state(same, snapshot));
  EXPECT_OK(load_state(fewer, snapshot));  // which files a run reads, its settings say
  const std::string error = error_of(load_state(other, snapshot));
  EXPECT_THAT(error, HasSubstr("\n  what reference\n  what reward.0.path\nRestore them, give --allow-change"));
  other.takes_changes = true;
  EXPECT_OK(load_state(other, snapshot));
  const StateSnapshot first = saved(fewer);
  RunInputs more = inputs({"a", "b"});
  EXPECT_OK(load_state(more, first));
}

}  // namespace
}  // namespace mortise
