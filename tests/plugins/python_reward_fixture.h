// The reward `python` of this build with a file given as text, and rows in verl's form.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "foundation/base/clock.h"
#include "reward_call.h"
#include "support/temp_dir.h"

namespace mortise::test {

inline constexpr int64_t kMs = 1'000'000;

class PythonReward : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no python3 of 3.8 or newer in PATH: the reward `python` was not tested";
  }

  const mortise_descriptor* plugin() {
    static const mortise_pack* pack =
        load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_python.so");
    return find_plugin(pack, MORTISE_KIND_REWARD, "python");
  }
  RewardCall make(const std::string& source, std::map<std::string, std::string> params = {}) {
    params["path"] = dir_.write("my_reward.py", source).string();
    return RewardCall(plugin(), std::move(params));
  }
  // What create says about this file.
  std::string refusal(const std::string& source, std::map<std::string, std::string> params = {}) {
    const RewardCall made = make(source, std::move(params));
    EXPECT_EQ(made.plugin.self, nullptr);
    return made.plugin.call.error;
  }
  static void give_time(RewardCall& call, int64_t ms) {
    call.plugin.call.deadline_ns = default_env().monotonic_ns() + ms * kMs;
  }
  static std::string failure(const RewardCall& call, int64_t row) {
    const auto it = call.plugin.call.failed_rows.find(row);
    return it == call.plugin.call.failed_rows.end() ? "row " + std::to_string(row) + " did not fail" : it->second.text;
  }

  TempDir dir_;
};

inline RewardRows verl_rows(std::vector<std::string> solutions) {
  const std::vector<std::optional<std::string>> models(solutions.size(), R"({"ground_truth": "42", "style": "rule"})"),
      infos(solutions.size(), R"({"index": 3})"), sources(solutions.size(), "gsm8k");
  return {std::move(solutions),
          {text("data_source", sources), json("reward_model", models), json("extra_info", infos)},
          {},
          {},
          0};
}

}  // namespace mortise::test
