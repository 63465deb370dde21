// math_equal against sympy: random expressions, in the forms that sympy gives them and with a number changed.
// MORTISE_ORACLES_PYTHON names the Python that has sympy; without it the test is skipped, aloud.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "math/judge.h"
#include "support/temp_dir.h"

namespace mortise::math {
namespace {

TEST(MathOracle, AgreesWithSympy) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: sympy did not judge math_equal";
  const int count = std::getenv("MORTISE_LONG") != nullptr ? 20'000 : 300;
  const test::TempDir dir;
  const std::string out = (dir / "rows.jsonl").string();
  const std::string command = "'" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                              "/tests/plugins/math_oracle.py' " + std::to_string(count) + " 20261122 > '" + out + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream file(out);
  int total = 0, equal = 0, different = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const auto row = nlohmann::json::parse(line);
    Golds golds;
    golds.emplace_back(row["gold"].get<std::string>());
    EXPECT_NE(golds[0].node, nullptr) << "cannot be read: " << row["gold"];
    const Answer answer = answer_of("\\boxed{" + row["answer"].get<std::string>() + "}", Extraction::kAny);
    equal += row["same"].get<bool>() ? 1 : 0;
    if (is_right(golds, answer, Rules()) == row["same"].get<bool>()) continue;
    if (++different <= 5) ADD_FAILURE() << line;
  }
  EXPECT_EQ(total, count);
  EXPECT_GT(equal, count / 4);
  EXPECT_LT(equal, count);
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace mortise::math
