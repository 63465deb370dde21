// The parts of math_equal, one by one: extraction, normaliser, parser, numbers, comparison.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "math/compare.h"
#include "math/evaluate.h"
#include "math/extract.h"
#include "math/judge.h"
#include "math/marked.h"
#include "math/normalise.h"
#include "math/parser.h"

namespace mortise::math {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string first(std::string_view completion, Extraction how = Extraction::kAny) {
  const std::vector<std::string> found = extract(completion, how);
  return found.empty() ? "(none)" : found[0];
}

TEST(Extract, LooksInThePlacesInTheirOrder) {
  EXPECT_EQ(first("answer: 1 #### 2 $3$ \\boxed{4} 5"), "4");
  EXPECT_EQ(first("answer: 1 $3$\n#### 2\n5"), "2");
  EXPECT_EQ(first("$3$, so the answer is 1, not 5"), "1");
  EXPECT_EQ(first("so $2$ and $3$ from 5 eggs"), "$3$");
  EXPECT_EQ(first("from 5 eggs and 7"), "7");
  EXPECT_EQ(first("from 5 eggs and 7", Extraction::kBoxed), "(none)");
  EXPECT_THAT(extract("", Extraction::kAny), IsEmpty());
}

// As math-verify does without try_extract_without_anchor.
TEST(Extract, MarkedAnswersAreBoxedOrAnnouncedFormulas) {
  const auto marked = [](std::string_view text) { return first(text, Extraction::kMarked); };
  EXPECT_EQ(marked("the answer is $1$, \\boxed{2}"), "2") << "a box goes first";
  EXPECT_EQ(marked("The answer is $\\frac{1}{2}$."), "\\frac{1}{2}");
  EXPECT_EQ(marked("ANSWER: \\(x = 5\\)"), "x = 5");
  EXPECT_EQ(marked("the answer is \\frac{1}{2}"), "\\frac{1}{2}") << "a fraction of numbers needs no delimiters";
  EXPECT_EQ(marked("the answer is \\frac{x}{2}"), "(none)");
  EXPECT_EQ(marked("the answer is 42"), "(none)");
  EXPECT_EQ(marked("$42$ is what we want"), "(none)") << "nothing announces it";
  EXPECT_EQ(marked("answer: $1$, but the final answer is $2$; answer: $3$"), "2");
  EXPECT_EQ(marked("an answer $1$ and then answer: $2$ or an answer $3$"), "2") << "a colon goes before none";
  EXPECT_EQ(marked("answer: $1$. answer: $2$"), "2") << "the last";
  EXPECT_EQ(marked("the answers are $1$, $2$ and $3$."), "1, 2, 3");
  EXPECT_EQ(marked("the answer is $25$%"), "25\\%");
  EXPECT_EQ(marked("answer " + std::string(50, '.') + "$1$"), "(none)") << "51 bytes on";
  EXPECT_EQ(marked("answer " + std::string(49, '.') + "$1$"), "1");
  EXPECT_EQ(marked("answer \\[ answer $1$"), "1") << "what never closes is no formula";
}

TEST(Extract, FormulasInProse) {
  EXPECT_EQ(formula_in_prose("first $x$, then the area is $12\\pi$ units"), "12\\pi");
  EXPECT_EQ(formula_in_prose("the roots are $1$ and $2$."), "1, 2");
  EXPECT_EQ(formula_in_prose("$5$ cm"), "5");
  // Dollars of money open no formula, however many there are.
  const std::string money = R"(She pays \$1, \$2, \$3, \$4, \$5, \$6, \$7, \$8 and \$9, so the answer is $x$)";
  EXPECT_EQ(formula_in_prose(money), "x");
  EXPECT_TRUE(is_marked(money));
  for (const char* whole :
       {"$x+1$", " $1$, $2$ ", "12 cm", "\\frac{1}{2}", "2\\frac{1}{2}", "so \\boxed{3} and $4$", "yes", ""})
    EXPECT_EQ(formula_in_prose(whole), "") << whole;
}

TEST(Extract, MarkedRightAnswersAreThoseThatMathVerifyFinds) {
  for (const char* yes : {"$x+1$", "so \\(a\\)", "\\[b\\]", "\\boxed{x}", "42", "-7", "x = 5", "costs $5 each",
                          "\\frac{1}{3}", "-\\frac{1.5}{2}", ".5", "(3+4)", "**12**", "no more than 3 apples"}) {
    EXPECT_TRUE(is_marked(yes)) << yes;
  }
  for (const char* no : {"", "A", "yes", "x+1", "\\sqrt{2}", "\\frac{a}{b}", "\\frac{\\pi}{2}", "XDY2K", "$$", "\\$"}) {
    EXPECT_FALSE(is_marked(no)) << no;
  }
}

TEST(Extract, BoxesMatchTheirBraces) {
  EXPECT_EQ(last_box("\\boxed{\\frac{1}{2}}"), "\\frac{1}{2}");
  EXPECT_EQ(last_box("\\boxed{\\{1, 2\\}} and }"), "\\{1, 2\\}");
  EXPECT_EQ(last_box("{ \\boxed{1}"), "1") << "an open brace before it";
  EXPECT_EQ(last_box("\\boxed{1} then \\boxed{2"), "1") << "the last that is closed";
  EXPECT_EQ(last_box("\\boxed{1} \\boxed{}"), "1");
  EXPECT_EQ(last_box("\\fbox{3}"), "3");
  EXPECT_EQ(last_box("\\boxed{1}, \\boxed{2} and \\boxed{3}"), "1, 2, 3");
  EXPECT_EQ(last_box("\\boxed{1}. Therefore \\boxed{2}"), "2");
  EXPECT_EQ(last_box("no box"), "");
}

TEST(Extract, NumbersInProse) {
  EXPECT_EQ(first("he pays \\$1,234.50 in all"), "\\$1,234.50");
  EXPECT_EQ(first("it falls by -3.5%"), "-3.5%");
  EXPECT_EQ(first("a ratio of 3/4."), "3/4");
  EXPECT_EQ(first("pages 10-12"), "12") << "a dash between numbers is no sign";
  EXPECT_EQ(first("it costs $5 a piece, thus $15 for three"), "$15") << "dollars around words are money";
  EXPECT_EQ(first("The answer is \\frac{1}{2} of it."), "\\frac{1}{2}");
  EXPECT_EQ(first("Answer: x = 5 or x = 6, as shown."), "x = 5 or x = 6");
}

TEST(Normalise, SpellsThingsOneWay) {
  EXPECT_EQ(normalise("$\\left( 1,\\, 2 \\right)$."), "( 1,  2 )");
  EXPECT_EQ(normalise("\\dfrac{1}{2}"), "\\frac{1}{2}");
  EXPECT_EQ(normalise("5\\text{ cm}"), "5\"cm\"");
  EXPECT_EQ(normalise("\\text{42}"), "42");
  EXPECT_EQ(normalise("\\textbf{(C)}"), "(C)");
  EXPECT_EQ(normalise("1{,}024"), "1024");
  EXPECT_EQ(normalise("x\\leqslant 3"), "x\\le  3");
  EXPECT_EQ(normalise("−5 × ½"), "-5 * \\frac{1}{2}");
  EXPECT_EQ(normalise("√12 + ４２"), "\\sqrt{12} + 42");
  EXPECT_EQ(normalise("\\begin{bmatrix}1\\\\2\\end{bmatrix}"), "\\begin{matrix}1\\\\2\\end{matrix}");
  EXPECT_EQ(normalise(std::string(kMaxAnswer + 1, '1')), "");
}

// The tree as text: (kind children...).
std::string tree(const Node& n) {
  static const char* const kNames[] = {"",      "",    "pi",   "e",   "i",   "oo",    "+",   "*",      "neg",
                                       "/",     "^",   "root", "log", "",    "!",     "abs", "floor",  "ceil",
                                       "binom", "%",   "deg",  "by",  "",    "mod",   "pm",  "",       "",
                                       "tuple", "set", "list", "cup", "cap", "minus", "",    "matrix", ":"};
  if (n.kind == Kind::kNumber) return n.number.get_str() + (n.decimal ? "." : "");
  if (n.kind == Kind::kSymbol || n.kind == Kind::kWord || n.kind == Kind::kBased) return n.text;
  std::string out = "(" + std::string(kNames[int(n.kind)]) + n.text;
  for (const NodePtr& arg : n.args) out += " " + tree(*arg);
  return out + ")";
}
std::string read(std::string_view text) {
  try {
    return tree(*parse(normalise(text)));
  } catch (const Unreadable& e) {
    return std::string("unreadable: ") + e.what();
  }
}

TEST(Parser, Precedence) {
  EXPECT_EQ(read("1+2*3^2"), "(+ 1 (* 2 (^ 3 2)))");
  EXPECT_EQ(read("-2^2"), "(neg (^ 2 2))");
  EXPECT_EQ(read("a/b c"), "(* (/ a b) c)");
  EXPECT_EQ(read("2^{3^2}"), "(^ 2 (^ 3 2))");
  EXPECT_EQ(read("2x!"), "(* 2 (! x))");
  EXPECT_EQ(read("3\\pm\\sqrt2"), "(+ 3 (pm+ (root 2 2)))");
  EXPECT_EQ(read("x\\cup y\\cup z"), "(cup x y z)");
}

TEST(Parser, Fractions) {
  EXPECT_EQ(read("\\frac38"), "(/ 3 8)");
  EXPECT_EQ(read("\\frac3{8}"), "(/ 3 8)");
  EXPECT_EQ(read("\\frac{3}8x"), "(* (/ 3 8) x)");
  EXPECT_EQ(read("3\\frac12"), "(+ 3 (/ 1 2))");
  EXPECT_EQ(read("3 1/2"), "(+ 3 (/ 1 2))");
  EXPECT_EQ(read("x\\frac12"), "(* x (/ 1 2))");
  EXPECT_EQ(read("\\sqrt12"), "(* (root 1 2) 2)");
  EXPECT_EQ(read("√12"), "(root 12 2)");
}

TEST(Parser, Numbers) {
  EXPECT_EQ(read("1,234,567"), "1234567");
  EXPECT_EQ(read("1 234 567"), "1234567");
  EXPECT_EQ(read("12,34"), "(list 12 34)");
  EXPECT_EQ(read("(1,234)"), "(tuple() 1 234)") << "in brackets a comma separates";
  EXPECT_EQ(read(".75"), "3/4.");
  EXPECT_EQ(read("0.\\overline{3}"), "1/3");
  EXPECT_EQ(read("0.1\\overline{6}"), "1/6");
  EXPECT_EQ(read("1.5e3"), "1500.");
  EXPECT_EQ(read("101_2"), "101_2");
  EXPECT_EQ(read("25\\%"), "(% 25)");
  EXPECT_EQ(read("30^\\circ"), "(deg 30)");
}

TEST(Parser, FunctionsAndNames) {
  EXPECT_EQ(read("\\sin 2x\\cos x"), "(* (sin (* 2 x)) (cos x))");
  EXPECT_EQ(read("\\sin^2 x"), "(^ (sin x) 2)");
  EXPECT_EQ(read("\\sin^{-1} x"), "(arcsin x)");
  EXPECT_EQ(read("\\cos\\pi/3"), "(cos (/ (pi) 3))");
  EXPECT_EQ(read("\\log_2 8"), "(log 8 2)");
  EXPECT_EQ(read("a_{1} + b'"), "(+ a_1 b')");
  EXPECT_EQ(read("e^{i\\pi}"), "(^ (e) (* (i) (pi)))");
  EXPECT_EQ(read("sqrt(12)"), "(root 12 2)");
}

TEST(Parser, Several) {
  EXPECT_EQ(read("\\{1, 2\\}"), "(set 1 2)");
  EXPECT_EQ(read("[0, 5)"), "(tuple[) 0 5)");
  EXPECT_EQ(read("x = 1 \\text{ or } x = 2"), "(list (= x 1) (= x 2))");
  EXPECT_EQ(read("0 \\le x < 5"), "(l< 0 x 5)");
  EXPECT_EQ(read("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"), "(matrix 1 2 3 4)");
  EXPECT_EQ(read("2:3"), "(: 2 3)");
  EXPECT_EQ(read("\\emptyset"), "(set)");
  EXPECT_EQ(read("|x|+|-5|"), "(+ (abs x) (abs (neg 5)))");
}

TEST(Parser, WordsAndUnits) {
  EXPECT_EQ(read("5 cm"), "5");
  EXPECT_EQ(read("5\\text{ cm}^2"), "5");
  EXPECT_EQ(read("12\\text{ m}"), "12");
  EXPECT_EQ(read("2\\mathrm{i}"), "(* 2 (i))");
  EXPECT_EQ(read("\\text{Monday}"), "monday");
  EXPECT_EQ(read("5 \\text{ percent}"), "(% 5)");
  EXPECT_EQ(read("ab"), "(* a b)");
  EXPECT_EQ(read("5 km/h"), "5");
  EXPECT_EQ(read("100^\\circ\\text{C}"), "(deg 100)");
  EXPECT_EQ(read("21^{st}"), "21");
  EXPECT_EQ(read("2.5 million people"), "(by 5/2.)");
  EXPECT_EQ(read("\\text{Area} = 5"), "(=  area 5)");
}

TEST(Parser, NamesWithDigitsAndLettersThatAreSigns) {
  EXPECT_EQ(read("x1 + 2x2"), "(+ x_1 (* 2 x_2))");
  EXPECT_EQ(read("\\frac x2"), "(/ x 2)");
  EXPECT_EQ(read("x**2"), "(^ x 2)");
  EXPECT_EQ(read("**2**"), "2");
  EXPECT_EQ(read("**5**cm"), read("5cm"));
  EXPECT_EQ(read("1.5 x 10^3"), "(* 3/2. (^ 10 3))");
  EXPECT_EQ(read("3 to 4"), "(: 3 4)");
  EXPECT_EQ(read("{x+1 \\over 2}"), "(/ (+ x 1) 2)");
  EXPECT_EQ(read("33\\frac13\\%"), "(% (+ 33 (/ 1 3)))");
  EXPECT_EQ(read("2 (mod 5)"), "(modclass 2 5)");
  EXPECT_EQ(read("\\gcd(12, 18)"), "(gcd 12 18)");
  EXPECT_EQ(read("\\begin{aligned} x &= 1 + 1 \\\\ &= 2 \\end{aligned}"), "(== x (+ 1 1) 2)");
  EXPECT_EQ(read("\\begin{equation*}\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\end{equation*}"),
            read("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"));
  EXPECT_EQ(read("\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}+\\begin{vmatrix}5\\end{vmatrix}").substr(0, 3), "(+ ");
}

TEST(Parser, RefusesWhatItDoesNotKnow) {
  for (const char* text :
       {"", "+", "(1", "1)", "\\frac{1}", "\\sum_{k} k", "1..2", "5!!", "\\{", "\\begin{pmatrix}1&2\\\\3\\end{pmatrix}",
        "[1)", "2 3", "\\begin{vmatrix}\\begin{vmatrix}1\\end{vmatrix}\\end{vmatrix}"})
    EXPECT_THAT(read(text), testing::StartsWith("unreadable")) << text;
  EXPECT_THAT(read("1" + std::string(100, '%')), testing::HasSubstr("too much behind a number"));
  EXPECT_THAT(read(std::string(200, '(') + "1" + std::string(200, ')')), testing::HasSubstr("nested too deep"));
}

class NumberTest : public testing::Test {
 protected:
  Value of(std::string_view text) { return evaluate(*parse(normalise(text)), 0, true, arithmetic_); }
  bool equal(std::string_view a, std::string_view b) { return arithmetic_.equal(of(a), of(b)); }
  Budget budget_;
  Arithmetic arithmetic_{budget_};
};

TEST_F(NumberTest, ExactStaysExact) {
  for (const char* text : {"1/3+1/6", "(1/2)^{-3}", "4^{1/2}", "\\sqrt{\\frac{9}{4}}", "\\sqrt[3]{-8}", "(1+i)^4", "5!",
                           "\\binom{10}{3}", "\\lfloor -2.5\\rfloor", "|-3|"})
    EXPECT_TRUE(std::holds_alternative<Exact>(of(text))) << text;
  EXPECT_TRUE(equal("(1+i)^4", "-4"));
  EXPECT_TRUE(equal("\\sqrt[3]{-8}", "-2"));
  EXPECT_TRUE(equal("\\lfloor -2.5\\rfloor", "-3"));
  EXPECT_TRUE(equal("|3+4i|", "5"));
}

TEST_F(NumberTest, IdentitiesHoldAndNearMissesDoNot) {
  EXPECT_TRUE(equal("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt{6}}"));
  EXPECT_TRUE(equal("\\sin\\frac{\\pi}{12}", "\\frac{\\sqrt6-\\sqrt2}{4}"));
  EXPECT_TRUE(equal("\\ln e^3", "3"));
  EXPECT_TRUE(equal("\\log 100", "2")) << "base 10, as in math-verify";
  EXPECT_TRUE(equal("e^{i\\pi}", "-1"));
  EXPECT_TRUE(equal("4\\arctan 1", "\\pi"));
  EXPECT_TRUE(equal("\\cos 60^\\circ", "1/2"));
  EXPECT_TRUE(equal("\\arcsin 1", "\\pi/2"));
  EXPECT_TRUE(equal("\\sqrt{-4}", "2i"));
  EXPECT_TRUE(equal("\\tanh 1", "\\frac{e^2-1}{e^2+1}"));
  EXPECT_FALSE(equal("e^{\\pi\\sqrt{163}}", "262537412640768744"));
  EXPECT_FALSE(equal("\\pi", "\\frac{355}{113}"));
  EXPECT_FALSE(equal("\\sqrt{2}", "1.4142135623730950488016887242096980785696718753769"));
}

TEST_F(NumberTest, CancellationIsSeen) {
  EXPECT_TRUE(equal("(10^{50}+\\pi)-10^{50}", "\\pi"));
  EXPECT_TRUE(equal("\\sin\\pi", "0"));
  EXPECT_FALSE(equal("e^{-500}", "2e^{-500}"));
  EXPECT_THROW(equal("(10^{90}+\\pi)-10^{90}", "\\pi"), Undefined) << "too few digits are left to say";
  EXPECT_THROW(of("1/(\\sin^2 1+\\cos^2 1-1)"), Undefined) << "division by what may be 0";
}

TEST_F(NumberTest, WithoutAValue) {
  for (const char* text : {"1/0", "0^{-1}", "\\ln 0", "9^{9^{9^9}}", "100000!", "\\arcsin 2", "(-1)!", "\\sin 10^{100}",
                           "\\tan\\frac{\\pi}{2}"})
    EXPECT_THROW(of(text), Undefined) << text;
}

bool same(const char* gold, const char* answer) {
  Budget budget;
  return math::same(Answer(gold), Answer(answer), Rules(), budget);
}

TEST(Compare, Expressions) {
  EXPECT_TRUE(same("(x+1)^{10}", "x^{10}+10x^9+45x^8+120x^7+210x^6+252x^5+210x^4+120x^3+45x^2+10x+1"));
  EXPECT_FALSE(same("(x+1)^{10}", "x^{10}+10x^9+45x^8+120x^7+210x^6+252x^5+210x^4+120x^3+45x^2+10x+2"));
  EXPECT_TRUE(same("\\frac{x^2-1}{x-1}", "x+1"));
  EXPECT_TRUE(same("\\sin 2x", "2\\sin x\\cos x"));
  EXPECT_FALSE(same("|x|", "x"));
  EXPECT_TRUE(same("\\sqrt{x^2}", "|x|"));
  EXPECT_TRUE(same("n!", "n(n-1)!"));
  EXPECT_FALSE(same("x", "y"));
  EXPECT_TRUE(same("2^{n+1}", "2\\cdot 2^n"));
}

TEST(Compare, Decimals) {
  EXPECT_TRUE(same("\\frac{2}{3}", "0.666667"));
  EXPECT_FALSE(same("\\frac{2}{3}", "0.6667"));
  EXPECT_TRUE(same("25", "25\\%")) << "as math-verify has it";
  EXPECT_TRUE(same("25\\%", "25"));
  EXPECT_FALSE(same("25\\%", "2500"));
  EXPECT_FALSE(same("10", "10.0000001")) << "a whole number is not rounded";
  EXPECT_TRUE(same("\\pi", "3.141593"));
  EXPECT_TRUE(same("33.333333\\%", "\\frac{1}{3}"));
  EXPECT_TRUE(same("0.5x", "\\frac{x}{2}"));
  EXPECT_FALSE(same("0.333333x", "\\frac{x}{3}")) << "rounding is for numbers alone";
}

TEST(Compare, EquationsAndInequalities) {
  EXPECT_TRUE(same("2x + 3y = 6", "4x + 6y = 12"));
  EXPECT_TRUE(same("y = 2x + 1", "y - 2x = 1"));
  EXPECT_FALSE(same("y = 2x + 1", "y = 2x + 2"));
  EXPECT_TRUE(same("x > 3", "(3, \\infty)"));
  EXPECT_TRUE(same("[0, 5)", "0 \\le x < 5"));
  EXPECT_FALSE(same("[0, 5)", "0 < x < 5"));
  EXPECT_TRUE(same("-x < 2", "x > -2"));
  EXPECT_FALSE(same("x < 2", "-x < -2"));
  EXPECT_TRUE(same("f(x) = x^2", "x^2"));
  EXPECT_TRUE(same("x \\in [0, 5)", "[0, 5)"));
  EXPECT_FALSE(same("x = 1, y = 2", "x = 2, y = 1"));
  EXPECT_TRUE(same("x = 1, y = 2", "y = 2, x = 1"));
  EXPECT_TRUE(same("2, -2", "x = \\pm 2"));
  EXPECT_TRUE(same("1 \\pm \\sqrt{2}", "1 - \\sqrt2, 1 + \\sqrt2"));
  EXPECT_TRUE(same("\\pm 3", "\\mp 3"));
}

TEST(Compare, Collections) {
  EXPECT_TRUE(same("\\{1, 2\\}", "\\{2, 1, 1\\}"));
  EXPECT_FALSE(same("(1, 2)", "[1, 2]"));
  EXPECT_TRUE(same("(1, 2)", "1, 2"));
  EXPECT_FALSE(same("(1, 2)", "2, 1"));
  EXPECT_FALSE(same("(1, 2)", "\\{1, 2\\}"));
  EXPECT_TRUE(same("\\{5\\}", "5"));
  EXPECT_TRUE(same("\\emptyset", "\\{\\}"));
  EXPECT_TRUE(same("\\mathbb{R}", "(-\\infty, \\infty)"));
  EXPECT_TRUE(same("2:3", "4:6"));
  EXPECT_TRUE(same("2:3", "\\frac{2}{3}"));
  EXPECT_FALSE(same("3:30", "4:40")) << "times";
  EXPECT_TRUE(same("(1, 2)", "x = 1, y = 2"));
  EXPECT_TRUE(same("\\begin{pmatrix} 1/2 \\\\ x+1 \\end{pmatrix}", "\\begin{bmatrix} 0.5 \\\\ 1+x \\end{bmatrix}"));
  EXPECT_FALSE(same("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"));
}

TEST(Compare, SetsOfRealNumbers) {
  EXPECT_TRUE(same("(1, 3) \\cup (2, 4)", "(1, 4)"));
  EXPECT_TRUE(same("(1, 2] \\cup (2, 3)", "(1, 3)"));
  EXPECT_FALSE(same("(1, 2) \\cup (2, 3)", "(1, 3)"));
  EXPECT_TRUE(same("\\mathbb{R} \\setminus \\{0\\}", "x \\ne 0"));
  EXPECT_TRUE(same("(-\\infty, -1) \\cup (1, \\infty)", "x < -1 \\text{ or } x > 1"));
  EXPECT_FALSE(same("(-\\infty, -1) \\cup (1, \\infty)", "x < -1 \\text{ or } y > 1"));
  EXPECT_TRUE(same("(1, 5)", "x > 1 \\text{ and } x < 5"));
  EXPECT_TRUE(same("\\{1, 2\\} \\cup \\{3\\}", "\\{1, 2, 3\\}"));
  EXPECT_TRUE(same("[1, 3] \\cap [3, 4]", "\\{3\\}"));
  EXPECT_TRUE(same("\\{x \\mid x \\ge 2\\}", "[2, \\infty)"));
  EXPECT_TRUE(same("(a, b) \\cup (c, d)", "(c, d) \\cup (a, b)"));
}

// A word that multiplies is part of the number; "dozen" is a unit too.
TEST(Compare, ScaleWords) {
  EXPECT_TRUE(same("5000000", "5 million"));
  EXPECT_TRUE(same("\\$2.5\\text{ million}", "2,500,000"));
  EXPECT_TRUE(same("3\\text{ hundred thousand}", "300000"));
  EXPECT_TRUE(same("1\\frac12\\text{ million}", "1500000"));
  EXPECT_FALSE(same("5\\text{ million}", "5"));
  EXPECT_FALSE(same("5", "5\\text{ million}"));
  EXPECT_FALSE(same("5\\text{ million}", "5\\text{ billion}"));
  EXPECT_TRUE(same("5\\text{ dozen}", "60"));
  EXPECT_TRUE(same("5", "5\\text{ dozen}"));
  EXPECT_TRUE(same("5\\text{ millionths}", "5")) << "a word like any other";
}

TEST(Compare, Matrices) {
  EXPECT_TRUE(same("\\begin{pmatrix} 2 & 4 \\end{pmatrix}", "2 \\begin{pmatrix} 1 & 2 \\end{pmatrix}"));
  EXPECT_FALSE(same("\\begin{pmatrix} 2 & 4 \\end{pmatrix}", "2 \\begin{pmatrix} 1 & 3 \\end{pmatrix}"));
  EXPECT_TRUE(same("\\begin{vmatrix} a & b \\\\ c & d \\end{vmatrix}", "ad - bc"));
}

TEST(Compare, Words) {
  EXPECT_TRUE(same("yes", "\\text{Yes}"));
  EXPECT_FALSE(same("yes", "no"));
  EXPECT_TRUE(same("B", "(B)"));
  EXPECT_TRUE(same("B", "\\text{B) } 42"));
  EXPECT_FALSE(same("B", "C) B"));
  EXPECT_FALSE(same("42", "")) << "nothing is no answer";
  EXPECT_TRUE(same("\\sum_{k=1}^n k^2", "\\sum_{k=1}^n k^2")) << "what cannot be read equals its own text";
  EXPECT_FALSE(same("\\sum_{k=1}^n k^2", "\\sum_{k=1}^n k"));
}

}  // namespace
}  // namespace mortise::math
