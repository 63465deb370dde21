// Comparing the outputs of golden tests, and the process that they run in.
#include "packs/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "foundation/formats/safetensors.h"
#include "plugin/worker/child.h"
#include "support/processes.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

std::string rewards(const TempDir& dir, const std::string& expected, const std::string& got, double tolerance = 1e-6) {
  const Path a = dir.write("a.jsonl", expected), b = dir.write("b.jsonl", got);
  const auto fault = compare_rewards(default_env(), a, b, tolerance);
  return fault.ok() ? *fault : fault.error().to_string();
}

TEST(GoldenTests, RewardsAreComparedRowByRow) {
  const TempDir dir;
  const std::string rows = "{\"reward\":1.0}\n{\"reward\":null}\n{\"reward\":-0.5}\n";
  EXPECT_EQ(rewards(dir, rows, rows), "");
  EXPECT_EQ(rewards(dir, rows, "{\"reward\":1.0000001}\n{\"reward\":null}\n{\"reward\":-0.5}\n"), "");
  EXPECT_THAT(rewards(dir, rows, "{\"reward\":1.001}\n{\"reward\":null}\n{\"reward\":-0.5}\n"), HasSubstr("row 1"));
  EXPECT_EQ(rewards(dir, rows, "{\"reward\":1.001}\n{\"reward\":null}\n{\"reward\":-0.5}\n", 0.01), "");
  EXPECT_THAT(rewards(dir, rows, "{\"reward\":1.0}\n{\"reward\":0}\n{\"reward\":-0.5}\n"), HasSubstr("row 2"));
  EXPECT_THAT(rewards(dir, rows, "{\"reward\":1.0}\n{\"reward\":null}\n"), HasSubstr("2 rewards, expected 3"));
  EXPECT_THAT(rewards(dir, "", ""), HasSubstr("no expected rewards"));
  EXPECT_THAT(rewards(dir, "{\"score\":1}\n", rows), HasSubstr("must be a number or null"));
}

TEST(GoldenTests, TensorsAreComparedByName) {
  const TempDir dir;
  const std::vector<float> x{1.0F, 2.0F, 100.0F}, close{1.0F, 2.00001F, 100.0F}, far{1.0F, 2.1F, 100.0F}, few{1.0F};
  const auto compare = [&](const std::string& expected, const std::vector<float>& want, const std::vector<float>& got) {
    const std::vector<TensorView> before{view_of("in.x", std::span<const float>(x)),
                                         view_of(expected, std::span(want))};
    const std::vector<TensorView> after{view_of("loss", std::span<const float>(got))};
    EXPECT_OK(write_safetensors_file(default_env(), dir / "a", before));
    EXPECT_OK(write_safetensors_file(default_env(), dir / "b", after));
    const auto fault = compare_tensors(default_env(), dir / "a", dir / "b", 1e-6);
    return fault.ok() ? *fault : fault.error().to_string();
  };
  EXPECT_EQ(compare("expected.loss", x, x), "");
  EXPECT_EQ(compare("expected.loss", x, close), "") << "the tolerance is of the largest element";
  EXPECT_THAT(compare("expected.loss", x, far), HasSubstr("loss[1] is 2.09"));
  EXPECT_THAT(compare("expected.loss", x, few), HasSubstr("1 elements, expected 3"));
  EXPECT_THAT(compare("expected.kl", x, x), HasSubstr("gives no kl"));
  EXPECT_THAT(compare("other", x, x), HasSubstr("no expected.X"));
}

TEST(GoldenTests, AChildHasALimitAndACleanEnvironment) {
  const TempDir dir;
  setenv("SECRET_TOKEN", "hunter2", 1);
  ASSERT_OK_AND_ASSIGN(const ChildOutcome told,
                       run_child({"/bin/sh", "-c", "env; exit 7"}, dir.path(), dir / "log", std::chrono::hours(1)));
  unsetenv("SECRET_TOKEN");
  EXPECT_EQ(told.code, 7);
  EXPECT_EQ(dir.read("log").find("hunter2"), std::string::npos);
  // A child of the child, too.
  ASSERT_OK_AND_ASSIGN(const ChildOutcome late,
                       run_child({"/bin/sh", "-c", "sleep 100000 & echo $! >child; mv child pid; sleep 100000"},
                                 dir.path(), dir / "log", std::chrono::milliseconds(2'000)));
  EXPECT_TRUE(late.timed_out);
  EXPECT_EQ(late.code, -9);
  EXPECT_TRUE(all_end({std::stoi(dir.read("pid"))}));
  EXPECT_FALSE(run_child({"/nonexistent"}, dir.path(), dir / "log", std::chrono::seconds(1)).ok());
}

}  // namespace
}  // namespace mortise::test
