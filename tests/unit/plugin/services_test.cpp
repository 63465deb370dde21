// Host services as a plugin sees them (plugin `probe` of tests/host/packs/rude_pack.cpp).
#include "plugin/host/host_services.h"

#include <thread>

#include "foundation/base/text.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/reward.h"
#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::error_of;

double value_of(const RewardOutput& out, int64_t row, const std::string& name) {
  for (const RowValue& value : out.row_values) {
    if (value.row == row && value.name == name) return value.value;
  }
  ADD_FAILURE() << "no row value " << name;
  return -1;
}

class ServicesTest : public testing::Test {
 protected:
  RewardOutput probe(uint64_t seed, int64_t step, const ordered_json& params = ordered_json::object()) {
    auto reward = Reward::create(registry_, "probe", params, {seed, nullptr});
    EXPECT_TRUE(reward.ok()) << error_of(reward);
    RewardBatch batch;
    batch.num_rows = 4;
    batch.step = step;
    auto out = reward->score(batch, nullptr);
    EXPECT_TRUE(out.ok()) << error_of(out);
    return std::move(out).value();
  }
  PluginRegistry registry_ = test::open_registry({"rude"});
};

TEST_F(ServicesTest, RandomIsAFunctionOfSeedStepLaneAndCounter) {
  const RewardOutput a = probe(1, 5), again = probe(1, 5), other_step = probe(1, 6), other_seed = probe(2, 5);
  EXPECT_EQ(a.rewards, again.rewards);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NE(a.rewards[i], other_step.rewards[i]);
    EXPECT_NE(a.rewards[i], other_seed.rewards[i]);
    EXPECT_NE(a.rewards[i], a.rewards[(i + 1) % 4]);
    EXPECT_NE(a.rewards[i], value_of(a, static_cast<int64_t>(i), "second"));
  }
}

TEST_F(ServicesTest, RandomCountersContinueAcrossCalls) {
  const InstanceIdentity identity{"label", "prefix", ordered_json::object(), 42};
  mortise_call call;
  call.identity = &identity;
  uint64_t all[6], part[3];
  host_table()->random_u64(&call, 9, 0, 6, all);
  host_table()->random_u64(&call, 9, 3, 3, part);
  EXPECT_TRUE(std::equal(part, part + 3, all + 3));
  // Across the border between two keys too.
  const uint64_t border = (uint64_t{1} << 32) - 2;
  host_table()->random_u64(&call, 9, border, 4, all);
  host_table()->random_u64(&call, 9, border + 2, 2, part);
  EXPECT_EQ(part[0], all[2]);
  EXPECT_EQ(part[1], all[3]);
}

TEST_F(ServicesTest, ParallelForVisitsEveryElementOnce) {
  EXPECT_EQ(value_of(probe(1, 1), 0, "parallel"), 1024);
  set_plugin_threads(4);
  EXPECT_EQ(value_of(probe(1, 1), 0, "parallel"), 1024);
  set_plugin_threads(1);
  EXPECT_EQ(value_of(probe(1, 1), 0, "parallel"), 1024);
  set_plugin_threads(0);
}

TEST_F(ServicesTest, NestedParallelForRunsInline) {
  struct State {
    std::atomic<int64_t> count = 0;
    std::atomic<int64_t> foreign = 0;
  } state;
  set_plugin_threads(4);
  host_table()->parallel_for(
      nullptr, 64, 1,
      [](void* arg, int64_t begin, int64_t end) {
        auto& s = *static_cast<State*>(arg);
        struct Inner {
          State* state;
          std::thread::id thread;
        } inner{&s, std::this_thread::get_id()};
        host_table()->parallel_for(
            nullptr, 32 * (end - begin), 1,
            [](void* inner_arg, int64_t first, int64_t last) {
              auto& i = *static_cast<Inner*>(inner_arg);
              i.state->count += last - first;
              if (std::this_thread::get_id() != i.thread) ++i.state->foreign;
            },
            &inner);
      },
      &state);
  EXPECT_EQ(state.count, 64 * 32);
  EXPECT_EQ(state.foreign, 0);
  set_plugin_threads(0);
}

TEST_F(ServicesTest, ExtensionsComeFromTheEngine) {
  static const double number = 6.5;
  register_host_extension("test.number/1", &number);
  EXPECT_EQ(value_of(probe(1, 1), 0, "extension"), 6.5);
  register_host_extension("test.number/1", nullptr);
  for (const RowValue& value : probe(1, 1).row_values) EXPECT_NE(value.name, "extension");
  EXPECT_EQ(host_table()->get_extension(nullptr), nullptr);
}

TEST_F(ServicesTest, ParametersArriveTyped) {
  EXPECT_EQ(value_of(probe(1, 1), 0, "params"), 3 + 0 + 400);
  EXPECT_EQ(value_of(probe(1, 1, {{"level", 7}, {"flag", true}, {"mode", "fast"}}), 0, "params"), 7 + 10 + 400);
}

TEST_F(ServicesTest, EveryServiceStandsWithoutACall) {
  const mortise_host* host = host_table();
  const mortise_text text{"x", 1};
  double f = 0;
  host->log(nullptr, MORTISE_LOG_DEBUG, text);
  host->metric(nullptr, text, 1, 1, 0);
  EXPECT_EQ(host->fail(nullptr, 3, text), 3);
  EXPECT_EQ(host->fail_row(nullptr, 0, 3, text), 3);
  EXPECT_EQ(host->cancelled(nullptr), 0);
  EXPECT_EQ(host->deadline_ns(nullptr), 0);
  host->progress(nullptr, 0.5);
  EXPECT_EQ(host->alloc(nullptr, 8, 8), nullptr);
  EXPECT_EQ(host->stream(nullptr), nullptr);
  EXPECT_EQ(host->param_f64(nullptr, "x", &f), MORTISE_NOT_FOUND);
}

TEST_F(ServicesTest, LongTextsAreCutAtACharacter) {
  std::string text = "ab";
  while (text.size() < (size_t{1} << 20)) text += "\u00e9";  // two bytes each: the cut falls inside one or not
  for (const size_t skip : {0, 1}) {
    mortise_call call;
    call.num_rows = 1;
    const mortise_text whole{text.data() + skip, text.size() - skip};
    host_table()->fail_row(&call, 0, MORTISE_UNKNOWN, whole);
    host_table()->fail(&call, MORTISE_UNKNOWN, whole);
    ASSERT_EQ(call.failed_rows.size(), 1U);
    for (const std::string& kept : {call.failed_rows[0].text, call.fail_text}) {
      EXPECT_LT(kept.size(), 4200U);
      EXPECT_EQ(find_invalid_utf8(kept), std::nullopt);
      EXPECT_THAT(kept, testing::AllOf(testing::HasSubstr("b\u00e9\u00e9"), testing::HasSubstr(" bytes)"),
                                       testing::Not(testing::HasSubstr("\\x"))));
    }
  }
}

TEST_F(ServicesTest, ProgressIsShownInPercentAndNotTooOften) {
  std::vector<std::string> seen;
  set_plugin_progress([&](const std::string& line) { seen.push_back(line); });
  InstanceIdentity identity;
  identity.prefix = "slow@test";
  mortise_call call;
  call.identity = &identity;
  host_table()->progress(&call, -1.0);
  call.progress_ns = default_env().monotonic_ns() + 3'600'000'000'000;  // however slow this machine is: not long ago
  for (const double fraction : {0.25, 7.0, std::nan("")}) host_table()->progress(&call, fraction);
  EXPECT_THAT(seen, testing::ElementsAre("[slow@test] 0%", "[slow@test] 100%"));
  call.progress_ns = default_env().monotonic_ns() - 100'000'000;
  host_table()->progress(&call, 0.5);
  EXPECT_EQ(seen.back(), "[slow@test] 50%");
  set_plugin_progress({});
}

TEST(StatusTest, Names) {
  EXPECT_EQ(status_name(0), "OK");
  EXPECT_EQ(status_name(16), "UNAUTHENTICATED");
  EXPECT_EQ(status_name(17), "status 17");
  EXPECT_EQ(status_name(-1), "status -1");
}

}  // namespace
}  // namespace mortise
