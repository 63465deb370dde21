// What the tests of the reward `code` share: the plugin, one program against one set of tests, and a skip where no
// program can be run in a sandbox.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "reward_call.h"
#include "support/bubblewrap.h"

namespace mortise::test {

class CodeFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_bubblewrap("no program was run in a sandbox"); !reason.empty())
      GTEST_SKIP() << reason;
  }

  static RewardCall make_code(std::map<std::string, std::string> params) {
    static const mortise_pack* pack =
        load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_code.so");
    params.try_emplace("python", "/usr/bin/python3");
    params.try_emplace("time_limit", "120");  // no machine is so slow that an honest program needs it
    return RewardCall(find_plugin(pack, MORTISE_KIND_REWARD, "code"), std::move(params));
  }
  static double score(RewardCall& plugin, const std::string& program, const std::string& tests) {
    const TestColumn column{"test_cases", MORTISE_COLUMN_JSON, {tests}, {}};
    return plugin.score({{program}, {column}, {}, {}, 0})[0];
  }
  // Does the program end well and print "ok"?
  static bool runs(RewardCall& plugin, const std::string& program) {
    return score(plugin, program, R"({"inputs": [""], "outputs": ["ok"]})") == 1;
  }
};

}  // namespace mortise::test
