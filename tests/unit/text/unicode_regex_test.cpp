// Unicode 16 tables, repair of broken UTF-8, and regular expressions rewritten from Oniguruma.
#include <algorithm>

#include "foundation/base/text.h"
#include "text/tokenizer/regex.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"
#include "text_test_support.h"

namespace mortise {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Unicode, CategoriesAreOfVersion16) {
  using unicode::Category;
  EXPECT_EQ(unicode::category('a'), Category::kLl);
  EXPECT_EQ(unicode::category(0x10D50), Category::kLu);  // Garay, new in 16
  EXPECT_EQ(unicode::category(0x1E4D0), Category::kLo);  // Nag Mundari, new in 15
  EXPECT_EQ(unicode::category(0x1171E), Category::kMc);  // was Mn before
  EXPECT_EQ(unicode::category(0x10FFFF), Category::kCn);
  EXPECT_TRUE(unicode::is_white_space(0x85));
  EXPECT_TRUE(unicode::is_white_space(0x3000));
  for (const char32_t code : {0x180E, 0x200B, 0xFEFF, 0x1C})
    EXPECT_FALSE(unicode::is_white_space(code)) << std::hex << static_cast<uint32_t>(code);
}

TEST(Unicode, RangesAgreeWithTheCategoryOfEachCodePoint) {
  for (const auto mask : {unicode::kLetters, unicode::kNumbers, unicode::kPunctuation}) {
    const auto ranges = unicode::ranges_of(mask);
    size_t at = 0;
    for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
      while (at < ranges.size() && ranges[at].last < code) ++at;
      const bool inside = at < ranges.size() && ranges[at].first <= code;
      ASSERT_EQ(inside, unicode::is_in(code, mask)) << std::hex << code;
    }
  }
}

TEST(Unicode, ScriptsAreOfVersion16) {
  EXPECT_FALSE(unicode::script_ranges("Nope").has_value());
  const auto has = [](const char* name, uint32_t code) {
    const auto ranges = unicode::script_ranges(name);
    return ranges && std::any_of(ranges->begin(), ranges->end(),
                                 [&](const auto& range) { return range.first <= code && code <= range.last; });
  };
  EXPECT_TRUE(has("han", U'漢'));
  EXPECT_TRUE(has("Han", 0x31350));  // new in 15
  EXPECT_FALSE(has("Han", U'。'));   // Common, though texts in Han characters use it
  EXPECT_TRUE(has("Old Italic", 0x10300));
  EXPECT_TRUE(has("Garay", 0x10D40));  // new in 16
}

TEST(Unicode, WhatNormalizationLearntAfterVersion9) {
  for (const char32_t code : {0x7FD, 0x32FF, 0x8D3, 0x1E030, 0x1FBF9})
    EXPECT_TRUE(unicode::is_normalized_since_9(code)) << std::hex << static_cast<uint32_t>(code);
  for (const char32_t code : {0x41, 0x301, 0x7FC, 0xE9, 0x32FE, 0x3300, 0xAC00, 0x1FBFA, 0x10FFFF})
    EXPECT_FALSE(unicode::is_normalized_since_9(code)) << std::hex << static_cast<uint32_t>(code);
}

TEST(Unicode, FullCaseMappings) {
  const auto mapped = [](void (*map)(std::string&, char32_t), char32_t code) {
    std::string out;
    map(out, code);
    return out;
  };
  EXPECT_EQ(mapped(unicode::append_upper, U'ß'), "SS");
  EXPECT_EQ(mapped(unicode::append_lower, U'İ'), "i̇");
  EXPECT_EQ(mapped(unicode::append_title, U'ǆ'), "ǅ");
  EXPECT_EQ(mapped(unicode::append_lower, 0x10D50), "\xF0\x90\xB5\xB0");
  EXPECT_EQ(mapped(unicode::append_upper, U'я'), "Я");
}

std::string repaired(std::string_view bytes) {
  unicode::Utf8Repair repair;
  std::string out;
  repair.push(bytes, out);
  repair.finish(out);
  return out;
}

TEST(Utf8Repair, OneReplacementPerMaximalSubpart) {
  EXPECT_EQ(repaired("aé中😀"), "aé中😀");
  EXPECT_EQ(repaired("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(repaired("\xF0\x9F\x41"), "\uFFFDA");
  EXPECT_EQ(repaired("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");  // overlong
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repaired("\xF5\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xC3\xC3\xA9"), "\uFFFDé");
}

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  auto regex = Regex::compile(pattern, "test");
  EXPECT_OK(regex);
  std::vector<TextSpan> spans;
  EXPECT_OK(regex->find_all(text, spans));
  std::vector<std::string> out;
  for (const TextSpan& span : spans) out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Regex, OnigurumaMeaningInPcre2) {
  EXPECT_THAT(matches(R"(\p{N}{1,3}+)", "1234567 8"), ElementsAre("1234567", "8"));
  EXPECT_THAT(matches(R"(a{,2}b)", "b ab aaab"), ElementsAre("b", "ab", "aab"));
  EXPECT_THAT(matches(R"([\p{L}&&[^a-c]]+)", "abcdeé1"), ElementsAre("deé"));
  EXPECT_THAT(matches(R"([a[x-z]]+)", "axbz"), ElementsAre("ax", "z"));
  EXPECT_THAT(matches(R"((?m:a.b))", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(matches(R"(a.b)", "a\nb"), ElementsAre());
  EXPECT_THAT(matches(R"(\h+)", "xyz09afg"), ElementsAre("09af"));
  EXPECT_THAT(matches(R"([^\S\n]+)", "a \t\n b"), ElementsAre(" \t", " "));
  EXPECT_THAT(matches(R"(\u4e2d)", "中文"), ElementsAre("中"));
  EXPECT_THAT(matches("", "ab"), ElementsAre("", "", ""));
  EXPECT_THAT(matches(R"(\s)", "\u180e\u0085\u200b"), ElementsAre("\u0085"));
  EXPECT_THAT(matches(R"(\p{L}+)", "\U00010D50x\U0001E4D0"), ElementsAre("\U00010D50x\U0001E4D0"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "你好。世界ー々〇、𱍐"), ElementsAre("你好", "世界", "々〇", "𱍐"));
  EXPECT_THAT(matches(R"([^\p{Han}a]+)", "你bcb世a、"), ElementsAre("bcb", "、"));
  EXPECT_THAT(matches(R"([\P{Han}]+)", "你b世、"), ElementsAre("b", "、"));
  EXPECT_THAT(matches(R"([a\W]+)", "a-bc.a"), ElementsAre("a-", ".a"));
  EXPECT_THAT(matches(R"([^\H]+)", "xaf9x"), ElementsAre("af9"));
}

TEST(Regex, PropertiesAndPosixClassesAreOfVersion16) {
  EXPECT_THAT(matches(R"(\p{Emoji_Presentation}+)", "a\U0001FAE9b\U0001F600"), ElementsAre("\U0001FAE9", "\U0001F600"));
  EXPECT_THAT(matches(R"([^\P{EPres}]+)", "a\U0001FAE9b"), ElementsAre("\U0001FAE9"));
  EXPECT_THAT(matches(R"([x\P{EPres}]+)", "a\U0001FAE9xb"), ElementsAre("a", "xb"));
  EXPECT_THAT(matches(R"(\p{alphabetic}+)", "\u0363a1\U00010D70"), ElementsAre("\u0363a", "\U00010D70"));
  EXPECT_THAT(matches(R"(\p{uppercase letter}\p{lu}\p{Letter})", "ABcd"), ElementsAre("ABc"));
  EXPECT_THAT(matches(R"([[:alpha:]]+)", "a\u24D0b1\u0363"), ElementsAre("a\u24D0b", "\u0363"));
  EXPECT_THAT(matches(R"([[:^alpha:]]+)", "a12b"), ElementsAre("12"));
  EXPECT_THAT(matches(R"([[:punct:]]+)", "a+b_.\u20AC1"), ElementsAre("+", "_.\u20AC"));
  EXPECT_THAT(matches(R"([[:space:]]+)", "a\u180E\u0085b"), ElementsAre("\u0085"));
  EXPECT_THAT(matches(R"([^[:graph:]]+)", "a\u00A0 b"), ElementsAre("\u00A0 "));
}

// The two ways to write a category have to find the same characters.
TEST(Regex, RangesAndPcreTablesAgree) {
  std::string all;
  for (uint32_t code = 1; code <= 0x10FFFF; ++code) {
    if (code < 0xD800 || code > 0xDFFF) append_utf8(all, code);
  }
  for (const std::string pattern : {R"(\p{L}+)", R"([\p{N}\s]+)", R"([^\s\p{L}\p{N}]+)", R"(\P{P}+)", R"(\p{M})"}) {
    const auto exact = translate_regex(pattern, "test", true);
    ASSERT_OK(exact);
    EXPECT_EQ(exact->find("\\p{"), std::string::npos);
    const auto short_form = Regex::compile(pattern, "test");
    const auto long_form = Regex::compile(*exact, "test");
    ASSERT_OK(short_form);
    ASSERT_OK(long_form);
    std::vector<TextSpan> a;
    std::vector<TextSpan> b;
    ASSERT_OK(short_form->find_all(all, a));
    ASSERT_OK(long_form->find_all(all, b));
    ASSERT_EQ(a.size(), b.size()) << pattern;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].begin, b[i].begin) << pattern;
      ASSERT_EQ(a[i].end, b[i].end) << pattern;
    }
  }
}

TEST(Regex, BadPatternsAreErrorsThatShowThem) {
  for (const char* pattern : {"(", "[a", "\\p{Nope}", "a\\", "(?x: a)", "\\p", "\\u12", "[[:nope:]]"}) {
    EXPECT_THAT(error_of(Regex::compile(pattern, "file.json")),
                testing::AllOf(HasSubstr("regular expression"), HasSubstr("file.json")))
        << pattern;
  }
  const auto refused = [](const std::string& pattern) { return error_of(Regex::compile(pattern, "file.json")); };
  EXPECT_THAT(refused(std::string(60000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(refused(std::string(70000, 'a')), HasSubstr("70000 bytes, at most 65536"));
  std::string words = "[";
  for (int i = 0; i < 20000; ++i) words += "\\w";
  EXPECT_THAT(refused(words + "]"), HasSubstr("too many character classes"));
  EXPECT_THAT(refused(words.substr(1)), HasSubstr("too many character classes"));
  EXPECT_THAT(refused(std::string(60000, '(')), HasSubstr("file.json"));
  EXPECT_THAT(refused("(?:(?:a{1000}){1000}){1000}"), HasSubstr("too large"));
}

TEST(Regex, BacktrackingEnds) {
  const auto regex = Regex::compile("(?:a|a)+(?:a|a)+(?:a|a)+[bc]", "file.json");
  ASSERT_OK(regex);
  std::vector<TextSpan> spans;
  EXPECT_THAT(error_of(regex->find_all(std::string(2000, 'a'), spans)), HasSubstr("more than 10000000 steps"));
}

}  // namespace
}  // namespace mortise
