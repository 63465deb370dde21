// MetricSet: how values are reduced, and that the split of a batch does not change them.
#include "foundation/metrics/registry.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "foundation/base/rng.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(MetricSet, ReducesByTheTable) {
  MetricSet set;
  set.add("actor/pg_loss", 3.0, 2);
  set.add_mean("actor/pg_loss", 5.0, 4);
  set.add("timing_s/gen", 1.5);
  set.add("timing_s/gen", 2.0);
  set.add("critic/score/max", -1);
  set.add("critic/score/max", -3);
  set.add("critic/score/min", 4);
  set.add("critic/score/min", 2);
  set.add("actor/lr", 1e-3);
  set.add("actor/lr", 1e-4);
  EXPECT_DOUBLE_EQ(*set.value("actor/pg_loss"), 23.0 / 6);
  EXPECT_EQ(*set.value("timing_s/gen"), 3.5);
  EXPECT_EQ(*set.value("critic/score/max"), -1);
  EXPECT_EQ(*set.value("critic/score/min"), 2);
  EXPECT_EQ(*set.value("actor/lr"), 1e-4);
  EXPECT_EQ(set.value("kl"), std::nullopt);
  set.add("kl", 0, 0);
  EXPECT_EQ(set.value("kl"), std::nullopt);  // a mean over nothing
  EXPECT_EQ(set.values().size(), 5u);
  EXPECT_EQ(set.values().front().name, "actor/lr");
  set.clear();
  EXPECT_TRUE(set.empty());
}

TEST(MetricSet, Summary) {
  MetricSet set;
  set.add_summary("critic/score", {1, 5, 3});
  set.add_summary("critic/rewards", {});
  EXPECT_EQ(*set.value("critic/score/mean"), 3);
  EXPECT_EQ(*set.value("critic/score/max"), 5);
  EXPECT_EQ(*set.value("critic/score/min"), 1);
  EXPECT_EQ(set.value("critic/rewards/mean"), std::nullopt);
}

TEST(MetricSet, BrokenNumbersStayVisible) {
  MetricSet set;
  set.add("kl", NAN, 1);
  set.add("kl", 1, 1);
  set.add("critic/score/max", NAN);
  set.add("critic/score/max", 5);
  set.add("actor/pg_loss", INFINITY, 1);
  set.add("actor/pg_loss", 1, 1);
  EXPECT_TRUE(std::isnan(*set.value("kl")));
  EXPECT_TRUE(std::isnan(*set.value("critic/score/max")));
  EXPECT_EQ(*set.value("actor/pg_loss"), INFINITY);
}

// The same thousand tokens, cut and ordered in many ways, give the same bits.
TEST(MetricSet, DoesNotDependOnTheSplit) {
  RandomStream random({.seed = 77});
  std::vector<std::pair<double, double>> parts;
  for (int i = 0; i < 1000; ++i)
    parts.emplace_back(random.next_normal() * std::pow(10.0, static_cast<double>(random.next_below(12)) - 6),
                       random.next_double());
  MetricSet whole;
  for (const auto& [sum, weight] : parts) {
    whole.add("actor/pg_loss", sum, weight);
    whole.add("timing_s/gen", sum);
    whole.add("critic/score/max", sum);
  }
  for (uint64_t round = 0; round < 50; ++round) {
    const auto order = random_permutation(1000, 5, RandomPurpose::kTest, round);
    const uint64_t num_sets = 1 + random.next_below(20);
    std::vector<MetricSet> sets(num_sets);
    for (const int64_t i : order) {
      const auto& [sum, weight] = parts[static_cast<size_t>(i)];
      MetricSet& set = sets[random.next_below(num_sets)];
      set.add("actor/pg_loss", sum, weight);
      set.add("timing_s/gen", sum);
      set.add("critic/score/max", sum);
    }
    MetricSet merged;
    for (const MetricSet& set : sets) ASSERT_OK(merged.merge(set));
    for (const char* name : {"actor/pg_loss", "timing_s/gen", "critic/score/max"})
      ASSERT_EQ(*merged.value(name), *whole.value(name)) << name << " in round " << round;
  }
}

TEST(MetricSet, LastComesFromTheLaterSet) {
  MetricSet a, b;
  a.add("actor/lr", 1);
  b.add("actor/lr", 2);
  ASSERT_OK(a.merge(b));
  EXPECT_EQ(*a.value("actor/lr"), 2);
}

TEST(MetricSet, PluginsNames) {
  MetricSet set;
  ASSERT_OK(set.add_user("acme/ratio", 6, 3, Reduction::kMean));
  ASSERT_OK(set.add_user("acme/ratio", 0, 1, Reduction::kMean));
  EXPECT_EQ(*set.value("acme/ratio"), 1.5);
  EXPECT_THAT(error_of(set.add_user("acme/ratio", 1, 1, Reduction::kMax)),
              HasSubstr("reduced by max here and by mean elsewhere"));
  EXPECT_THAT(error_of(set.add_user("critic/score/max", 1, 1, Reduction::kMean)),
              HasSubstr("reduced by mean here and by max elsewhere"));
  for (const std::string& bad : {std::string(), std::string("a\nb"), std::string("\xFF"), std::string(257, 'x')})
    EXPECT_THAT(error_of(set.add_user(bad, 1, 1, Reduction::kMean)), HasSubstr("metric name"));
  MetricSet other;
  ASSERT_OK(other.add_user("acme/ratio", 1, 1, Reduction::kSum));
  EXPECT_FALSE(set.merge(other).ok());
}

TEST(MetricSet, AFloodOfNamesIsStopped) {
  MetricSet set;
  for (int i = 0; i < 20'000; ++i) ASSERT_OK(set.add_user("m" + std::to_string(i), 1, 1, Reduction::kSum));
  EXPECT_THAT(error_of(set.add_user("one_more", 1, 1, Reduction::kSum)), HasSubstr("more than 20000 metric names"));
  EXPECT_OK(set.add_user("m5", 1, 1, Reduction::kSum));
}

TEST(MetricSetDeathTest, AnUnknownEngineNameIsKeptAndABuildWithAssertionsAborts) {
  MetricSet set;
  if (test::kAssertions) {
    EXPECT_DEATH(set.add("no/such/engine_metric", 4, 2), "metrics/names.cpp");
    return;
  }
  testing::internal::CaptureStderr();
  set.add("no/such/engine_metric", 4, 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("not in the table of metrics"));
  EXPECT_EQ(*set.value("no/such/engine_metric"), 2);
}

// Numbers that are saved half-way continue to the same bits.
TEST(MetricSet, SurvivesACheckpoint) {
  const auto first_half = [](MetricSet& set) {
    set.add_mean("actor/pg_loss", 0.1, 3);
    set.add("timing_s/gen", 1e16);
    set.add("critic/score/max", std::nan(""));
    set.add("actor/lr", 1e-3);
    set.add("kl", 0, 0);
    ASSERT_OK(set.add_user("mine", 2, 1, Reduction::kMin));
  };
  const auto second_half = [](MetricSet& set) {
    set.add_mean("actor/pg_loss", 0.7, 5);
    set.add("timing_s/gen", 1.0);
    set.add("actor/lr", 1e-4);
    ASSERT_OK(set.add_user("mine", -3, 1, Reduction::kMin));
  };
  MetricSet straight, saved, loaded;
  first_half(straight), first_half(saved);
  StateSnapshot snapshot;
  StateWriter writer("step", &snapshot);
  saved.save(writer, "metrics");
  std::sort(snapshot.tensors.begin(), snapshot.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  loaded.add("reward", 1);  // is replaced
  StateReader reader("step", &snapshot, "here");
  ASSERT_OK(loaded.load(reader, "metrics"));
  second_half(straight), second_half(loaded);
  const auto expected = straight.values(), actual = loaded.values();
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].name, expected[i].name);
    if (std::isnan(expected[i].value))
      EXPECT_TRUE(std::isnan(actual[i].value)) << actual[i].name;
    else
      EXPECT_EQ(actual[i].value, expected[i].value) << actual[i].name;
  }
  EXPECT_THAT(error_of(loaded.add_user("mine", 1, 1, Reduction::kSum)), HasSubstr("reduced by"));
}

}  // namespace
}  // namespace mortise
