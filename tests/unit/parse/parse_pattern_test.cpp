// Regular expressions on untrusted text: matches as in Python, and limits that are errors.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "parse/pattern.h"

namespace mortise::parse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using PatternKind = PatternFault::Kind;

constexpr size_t kMillion = 1'000'000;

Pattern compiled(std::string_view source, const PatternOptions& options = {}) {
  auto pattern = Pattern::compile(source, options);
  if (!pattern) throw std::invalid_argument(pattern.fault().what);
  return *std::move(pattern);
}

PatternOptions dot_all() {
  PatternOptions options;
  options.dot_all = true;
  return options;
}

// "yes", "no" or the fault.
std::string outcome(std::string_view source, std::string_view text, const PatternOptions& options = {}) {
  const auto found = compiled(source, options).matches(text);
  if (!found) return found.fault().what;
  return *found ? "yes" : "no";
}

std::vector<std::string> all(std::string_view source, std::string_view text, size_t group = 0) {
  const Pattern pattern = compiled(source);
  std::vector<std::string> out;
  PatternSearch search(pattern, text);
  while (search.next()) out.emplace_back(search.group(group).in(text));
  EXPECT_FALSE(search.fault().has_value());
  return out;
}

TEST(Pattern, MatchedOrNot) {
  EXPECT_EQ(outcome("b+", "abbc"), "yes");
  EXPECT_EQ(outcome("^b", "abbc"), "no");
  PatternOptions whole;
  whole.whole = true;
  EXPECT_EQ(outcome("a|ab", "ab", whole), "yes");
  EXPECT_EQ(outcome("a", "ab", whole), "no");
  EXPECT_EQ(outcome("", ""), "yes");
  EXPECT_EQ(outcome(".", std::string_view()), "no");
}

TEST(Pattern, AllMatchesAsPythonsFinditer) {
  EXPECT_THAT(all("x*", "axb"), ElementsAre("", "x", "", ""));
  EXPECT_THAT(all("(a)|(b)", "ab", 2), ElementsAre("", "b"));
  EXPECT_THAT(all("\xC3\xA9?", "\xC3\xA9\xE2\x82\xAC"), ElementsAre("\xC3\xA9", "", ""));
  EXPECT_EQ(*compiled("(a)(n|t)").replace_all("an at a", "$2$1-$0$$$1"), "na-an$a ta-at$a a");
  EXPECT_EQ(*lower_case("\xC3\x89"
                        "A\nB"),
            "\xC3\xA9"
            "a\nb");
}

// The JIT's default stack of 32 KiB ends near 8,000 characters of the first and 2,000 of the second.
TEST(Pattern, ALongTextIsNoObstacle) {
  for (const size_t size : {size_t{2'000}, size_t{8'000}, size_t{100'000}, kMillion}) {
    const std::string text = "<think>" + std::string(size, 'a') + "</think>";
    for (const char* source : {"^<think>(?:(?!</think>).)*</think>", "^<think>(.|\n)*?</think>$",
                               "<think>(.|\n)*</think>", "(*NO_JIT)^<think>(?:(?!</think>).)*</think>"}) {
      EXPECT_EQ(outcome(source, text, dot_all()), "yes") << source << " " << size;
      EXPECT_EQ(outcome(source, text.substr(0, text.size() - 1), dot_all()), "no") << source << " " << size;
    }
  }
}

TEST(Pattern, BacktrackingWithoutEndIsAFault) {
  const std::string text = std::string(5'000, 'a') + "!";
  PatternOptions options;
  options.max_seconds = 1'000;
  for (const char* source : {"(a+)+$", "(a|a)*$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(*NO_JIT)(a+)+$"}) {
    const auto found = compiled(source, options).matches(text);
    ASSERT_FALSE(found.ok()) << source;
    EXPECT_EQ(found.fault().kind, PatternKind::kLimit);
    EXPECT_THAT(found.fault().what, HasSubstr("more than 10000000 steps"));
  }
}

// Every start is cheap and reads to the end: no limit of PCRE2's own holds here.
TEST(Pattern, AQuadraticSearchIsAFault) {
  PatternOptions options;
  options.max_seconds = 0.05;
  const std::string text(kMillion, 'a');
  for (const char* source : {"(?:(a)|b)*c", "(?:a|b)*+[^ab]", "\\(*(?:a|b)*+[^ab]", "[(*]?(?:a|b)*+[^ab]",
                             "(*NO_JIT)(?:a|b)*+[^ab]", "\\\\?G?(?:a|b)*+[^ab]"}) {
    const auto found = compiled(source, options).matches(text);
    ASSERT_FALSE(found.ok()) << source;
    EXPECT_EQ(found.fault().what, "the search takes too much time");
  }
  const Pattern each = compiled("a(?=(?:a|b)*+$)", options);
  PatternSearch search(each, text);
  while (search.next()) {
  }
  ASSERT_TRUE(search.fault().has_value());
  EXPECT_EQ(search.fault()->kind, PatternKind::kLimit);
}

// A match from one place may take no longer than a search, though it needs fewer steps than PCRE2 allows.
TEST(Pattern, ASlowMatchFromOnePlaceIsAFault) {
  PatternOptions options;
  options.max_seconds = 0.001;
  const std::string text = std::string(200, 'a') + "!";
  for (const char* source : {"^(?:a|a){22}!", "(?:a|a){22}\\?!", "(*NO_JIT)^(?:a|a){22}!", "(?:a|a){22}[0-9](*THEN)"}) {
    const auto found = compiled(source, options).matches(text);
    ASSERT_FALSE(found.ok()) << source;
    EXPECT_EQ(found.fault().what, "the search takes too much time") << source;
  }
}

// A start gets few steps at first, and more as it needs them.
TEST(Pattern, AStartThatNeedsManyStepsIsTriedAgain) {
  for (const char* source : {"(?:a|a){14}!", "(?:a|a){14}(*THEN)!", "(*NO_JIT)(?:a|a){14}!"}) {
    const std::string text = std::string(100, 'a') + "!" + std::string(100, 'a') + "!";
    const Pattern pattern = compiled(source);
    PatternSearch search(pattern, text);
    for (const size_t begin : {size_t{86}, size_t{187}}) {
      ASSERT_TRUE(search.next()) << source;
      EXPECT_EQ(search.group().begin, begin) << source;
      EXPECT_EQ(search.group().end, begin + 15);
    }
    EXPECT_FALSE(search.next());
    EXPECT_FALSE(search.fault().has_value());
  }
}

// A search in a long text advances in parts. The result must not show it.
TEST(Pattern, PartsOfASearchDoNotChangeWhatMatches) {
  const std::string e = "\xC3\xA9";
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += i % 7 == 0 ? e + "\n" : e;
  text += "end" + e + "\nlast";
  const auto first = [&](std::string_view source) {
    const Pattern pattern = compiled(source);
    PatternSearch search(pattern, text);
    return search.find(0) ? std::string(search.group(0).in(text)) : std::string("none");
  };
  EXPECT_EQ(first("end"), "end");
  EXPECT_EQ(first("(?<=d)" + e), e);
  EXPECT_EQ(first("^last$"), "none");
  EXPECT_EQ(first("(?m)^last$"), "last");
  EXPECT_EQ(first("^end"), "none");
  EXPECT_EQ(first("\\Aend"), "none");
  EXPECT_EQ(first("\\Gend"), "none");
  EXPECT_EQ(first("(?:x|" + e + "(*COMMIT)y)"), "none");
  EXPECT_EQ(first(".*d"), e + e + e + e + "end");
  EXPECT_EQ(first("[a-z]{3}" + e + "?\n"), "end" + e + "\n");
}

TEST(Pattern, BadPatternsSayWhere) {
  const auto fault = [](std::string_view source) {
    const auto pattern = Pattern::compile(source);
    return pattern ? std::string("compiled") : pattern.fault().what;
  };
  EXPECT_EQ(fault("a(b"), "at character 3: missing closing parenthesis");
  EXPECT_EQ(fault("\\C"), "at character 2: using \\C is disabled by the application");
  EXPECT_THAT(fault(std::string(20'000, '(') + std::string(20'000, ')')), HasSubstr("too deeply nested"));
  EXPECT_THAT(fault(std::string(70'000, 'a')), HasSubstr("has 70000 bytes, at most 65536"));
  EXPECT_EQ(fault("a\xFF"), "it is not UTF-8 at byte 1");
  EXPECT_THAT(fault("((a{1,1000}){1,1000}){1,1000}"), HasSubstr("too large"));
}

TEST(Pattern, TextThatIsNotUtf8IsAFault) {
  const auto found = compiled("a").matches("aa\xFF");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.fault().kind, PatternKind::kText);
  EXPECT_EQ(found.fault().what, "the text is not UTF-8 at byte 2");
  EXPECT_FALSE(lower_case("\xFF").ok());
  EXPECT_FALSE(compiled("a").replace_all("\xFF", "").ok());
}

TEST(Pattern, SearchesWithinSearchesAndOnThreads) {
  const Pattern outer = compiled("(a)(b)(c)"), inner = compiled("b");
  const auto run = [&] {
    for (int i = 0; i < 100; ++i) {
      PatternSearch search(outer, "xabc abc");
      while (search.next()) {
        EXPECT_TRUE(*inner.matches("abc"));
        EXPECT_EQ(search.group(3).in("xabc abc"), "c");
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mortise::parse
