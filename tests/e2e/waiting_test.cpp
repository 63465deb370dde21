// How the program's threads wait: bounded spinning, then sleep, unless the user says otherwise; and no number depends
// on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_bits.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kWithoutSettings = "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT ";

// libgomp prints what it has read. It reads once, when it is loaded, before main(). `mortise --version` does not load it.
std::string spins_of(const std::string& environment) {
  const TempDir dir;
  const Outcome shown =
      run(kWithoutSettings + environment + " OMP_DISPLAY_ENV=verbose " + program() + " train --help", dir.path());
  EXPECT_EQ(shown.code, 0) << shown.output;
  const std::string key = "GOMP_SPINCOUNT = '";
  const size_t at = shown.output.find(key);
  if (at == std::string::npos) return "not shown: " + shown.output;
  const size_t begin = at + key.size();
  return shown.output.substr(begin, shown.output.find('\'', begin) - begin);
}

TEST(Waiting, OpenMpSpinsShortlyUnlessTheUserSaysOtherwise) {
  EXPECT_EQ(spins_of(""), "1000");
  EXPECT_EQ(spins_of("GOMP_SPINCOUNT=77"), "77");
  EXPECT_EQ(spins_of("OMP_WAIT_POLICY=passive"), "0");
  EXPECT_THAT(spins_of("OMP_WAIT_POLICY=active"), testing::AnyOf("30000000000", "infinity"));
}

TEST(Waiting, ChangesNoNumber) {
  const TinyTask task;
  std::map<std::string, std::string> expected;
  for (const char* environment : {"", "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=300000"}) {
    std::string line = kWithoutSettings + std::string(environment) + " ";
    const std::string out = "out" + std::to_string(std::string(environment).size());
    for (const std::string& word :
         task.words("train", out, {"trainer.total_training_steps=4", "trainer.num_threads=2"})) {
      line += "'" + word + "' ";
    }
    const Outcome trained = run(line, task.path());
    ASSERT_EQ(trained.code, 0) << trained.output;
    const std::map<std::string, std::string> bits = bits_of_run(task.path() / out, 4);
    if (expected.empty()) expected = bits;
    expect_same_bits(bits, expected, environment);
  }
}

}  // namespace
}  // namespace mortise::test
