// What math_equal does with completions that mean it harm: bounded work, no crash, and never right by accident.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "math/judge.h"
#include "math/marked.h"
#include "support/cpu_time.h"
#include "support/this_build.h"

namespace mortise::math {
namespace {

using test::cpu_seconds_of;

bool is_right(const std::string& gold, const std::string& completion) {
  Golds golds;
  golds.emplace_back(gold);
  return math::is_right(golds, answer_of(completion, Extraction::kAny), Rules());
}

std::string repeated(const std::string& piece, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += piece;
  return out;
}

// What a hundred thousand honest answers take here and now: far less than any of these takes without a limit.
double most_seconds() {
  static const double most = 100 * test::least_cpu_seconds_of([] {
                               for (int i = 0; i < 1000; ++i)
                                 is_right("\\frac{3}{4}", "So we get \\boxed{\\frac{\\sqrt{9}}{2^2}}.");
                             });
  return most;
}
// Pieces of a completion. What grows with the square of its length shows in the release build; a sanitizer needs each kind of
// completion once.
const int kMany = test::kSanitized ? 10'000 : 100'000;

TEST(MathHostile, NoAnswerTakesLong) {
  const std::string big = repeated("9", 7000);
  const std::vector<std::string> answers = {
      "9^{9^{9^{9^9}}}",
      "10^{10^{10}}",
      "(10^{100000})^{100000}",
      "5000!^{5000!}",
      "((5000!)!)!",
      "2^{2^{2^{2^{2^2}}}}",
      "\\binom{20000}{10000}^{20000}",
      "\\sin 10^{10^{6}}",
      "\\sqrt[4096]{2}^{4096}",
      "e^{e^{e^{e^e}}}",
      "\\ln\\ln\\ln 10^{10^5}",
      repeated("\\begin{vmatrix}1&2&3\\\\4&5&6\\\\7&8&", 60) + "9" + repeated("\\end{vmatrix}", 60),
      repeated("\\sqrt{", 500) + "2" + repeated("}", 500),
      repeated("(", 4000) + "1" + repeated(")", 4000),
      repeated("-", 4000) + "1",
      repeated("|", 4001),
      repeated("\\frac{", 600),
      repeated("\\text{", 600) + repeated("}", 600),
      repeated("1+", 2000) + "1",
      repeated("x^{", 300) + "2" + repeated("}", 300),
      "1" + repeated("^2", 300),
      "\\{" + repeated("1,", 1000) + "1\\}",
      "\\{" + repeated("x+1,", 300) + "1\\}",
      repeated("\\sin ", 900) + "1",
      repeated("2(", 50) + "1" + repeated(")", 50) + repeated("!", 30),
      "\\begin{pmatrix}" + repeated("1&", 2000) + "1\\end{pmatrix}",
      big,
      big + "/" + repeated("7", 900),
      "0." + repeated("1", 5990),
      "1.5e99999",
      "0.\\overline{" + repeated("7", 5000) + "}",
      repeated("(x+1)(x+2)^{99}", 80),
      repeated("\\pm", 2000) + "1",
      repeated("1\\pm", 500) + "1",
      repeated("1,", 199) + "1",
      repeated("\\cup(1,2)", 500),
      "x_{" + repeated("{", 2000) + repeated("}", 2000) + "}",
      "(x+y+z+1)^{4000}",
      "\\frac{1}{" + repeated("\\frac{1}{", 40) + "x" + repeated("}", 41),
      "\\sqrt[3]{" + repeated("x^2+", 500) + "1}",
      "5 " + repeated("million ", 900),
      "1" + repeated("%", 3900),
      "(1,2)" + repeated("\\cup(\\sqrt{2},\\pi)", 190),
      "\\mathbb{R}" + repeated("\\setminus\\{1\\}", 300),
      repeated("x\\ne 1,", 300) + "x\\ne 2",
      repeated("\\binom{x}{64}", 100),
      "\\binom{x}{\\binom{x}{\\binom{x}{60}}}",
      repeated("{1\\over", 300),
      repeated("\\{x|", 200),
      repeated("\\begin{aligned}", 200)};
  for (const std::string& answer : answers) {
    const double seconds = cpu_seconds_of([&] {
      EXPECT_FALSE(is_right("42", "\\boxed{" + answer + "}")) << answer.substr(0, 60);
      EXPECT_FALSE(is_right(answer, "\\boxed{41x}")) << answer.substr(0, 60);
      is_right(answer, "\\boxed{1+" + answer + "}");
    });
    EXPECT_LT(seconds, most_seconds()) << answer.substr(0, 60);
  }
}

TEST(MathHostile, NoCompletionTakesLong) {
  for (const std::string piece : {"\\boxed{",
                                  "$",
                                  "$$ ",
                                  "\\[",
                                  "\\(",
                                  "answer is ",
                                  "####",
                                  "answer: 1 ",
                                  "{",
                                  "}",
                                  "\\boxed{1} ",
                                  "<think>",
                                  "</think>",
                                  "1,",
                                  "1/",
                                  "答案是",
                                  "\\$",
                                  "-",
                                  "\xff",
                                  "a",
                                  "\\boxed{ } ",
                                  "answer $",
                                  "answer: \\[ ",
                                  "final answer is \\( ",
                                  "final answer  ",
                                  "answer $1$ and ",
                                  "5 million ",
                                  "million ",
                                  "\\frac{3}{4} ",
                                  "(1, "}) {
    const double seconds = cpu_seconds_of([&] {
      is_right("42", repeated(piece, kMany));
      answer_of(repeated(piece, kMany), Extraction::kMarked);
      is_marked(repeated(piece, kMany));
      formula_in_prose(repeated(piece, kMany));
    });
    EXPECT_LT(seconds, most_seconds()) << piece;
  }
}

constexpr const char* kPieces[] = {"\\frac",
                                   "{",
                                   "}",
                                   "(",
                                   ")",
                                   "[",
                                   "]",
                                   "\\{",
                                   "\\}",
                                   "1",
                                   "2",
                                   "42",
                                   "x",
                                   "y",
                                   "e",
                                   "i",
                                   "+",
                                   "-",
                                   "*",
                                   "/",
                                   "^",
                                   "_",
                                   "!",
                                   "%",
                                   ",",
                                   ";",
                                   ":",
                                   "=",
                                   "<",
                                   "\\le ",
                                   "\\sqrt",
                                   "\\sin ",
                                   "\\log_",
                                   "\\pi ",
                                   "\\infty ",
                                   "\\cup ",
                                   "\\pm ",
                                   "|",
                                   "\\text{",
                                   "cm",
                                   "and",
                                   "\\boxed{",
                                   "$",
                                   "\\begin{pmatrix}",
                                   "\\end{pmatrix}",
                                   "&",
                                   "\\\\",
                                   ".",
                                   " ",
                                   "\\circ",
                                   "\\binom",
                                   "\\lfloor ",
                                   "\\rfloor ",
                                   "√",
                                   "½",
                                   "−",
                                   "\"",
                                   "\\overline{3}",
                                   "1.5e9",
                                   "\xc3",
                                   "\\",
                                   "'",
                                   "####",
                                   "~"};

// Random strings of meaningful pieces and of bytes: no crash and no hang, and an answer that is right for one gold is
// wrong for another.
TEST(MathHostile, RandomTextIsReadSafely) {
  // Each kind of build reads texts of its own.
  const int count = std::getenv("MORTISE_LONG") != nullptr ? 2'000'000 : test::kSanitized ? 5'000 : 10'000;
  std::mt19937_64 random(test::kSanitized ? 20251123 : 20251122);
  const double before = test::cpu_seconds();
  for (int k = 0; k < count; ++k) {
    std::string text;
    const auto length = random() % 24;
    for (std::uint64_t i = 0; i < length; ++i) {
      text += random() % 32 == 0 ? std::string(1, char(random())) : kPieces[random() % std::size(kPieces)];
    }
    const bool one = is_right("987654321", "\\boxed{" + text + "}"), other = is_right("987654322", text);
    EXPECT_FALSE(one && other) << text;
    is_right(text, "\\boxed{" + text + " + 1}");
  }
  EXPECT_LT(test::cpu_seconds() - before, most_seconds() * count / 1000) << "as much as 100 honest answers, on average";
}

// The same answer gets the same result, whatever ran before.
TEST(MathHostile, VerdictsDoNotDependOnTime) {
  const std::string heavy = repeated("\\sin(x+", 50) + "1" + repeated(")", 50);
  const bool first = is_right(heavy, "\\boxed{" + heavy + "+0}");
  for (int k = 0; k < 20; ++k) EXPECT_EQ(is_right(heavy, "\\boxed{" + heavy + "+0}"), first);
  EXPECT_TRUE(first);
}

}  // namespace
}  // namespace mortise::math
