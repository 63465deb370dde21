// Helpers for texts: UTF-8, sizes, hints for misspelt names, counts.
#include "foundation/base/text.h"

#include <gmock/gmock.h>

#include "foundation/base/shown_text.h"

namespace mortise {
namespace {

using ::testing::ElementsAre;

TEST(Text, ByteSizes) {
  EXPECT_EQ(parse_byte_size("0"), 0);
  EXPECT_EQ(parse_byte_size("123"), 123);
  EXPECT_EQ(parse_byte_size("7B"), 7);
  EXPECT_EQ(parse_byte_size("500MB"), 500'000'000);
  EXPECT_EQ(parse_byte_size("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(parse_byte_size("3KiB"), 3072);
  for (const char* bad : {"", "GB", "-1", "-1MB", "1.5GB", "5 GB", "5TB", "5gb", "9223372036854775807KB"})
    EXPECT_EQ(parse_byte_size(bad), std::nullopt) << bad;
}

TEST(Utf8, FindsTheFirstBadByte) {
  const auto bad_at = [](std::string_view text) { return find_invalid_utf8(text); };
  EXPECT_EQ(bad_at(""), std::nullopt);
  EXPECT_EQ(bad_at("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"), std::nullopt);
  EXPECT_EQ(bad_at("\xEF\xBF\xBF\xF4\x8F\xBF\xBF\xED\x9F\xBF\xEE\x80\x80"),
            std::nullopt);                    // U+FFFF U+10FFFF U+D7FF U+E000
  EXPECT_EQ(bad_at("ab\x80"), 2u);            // a stray tail
  EXPECT_EQ(bad_at("\xC0\xAF"), 0u);          // overlong, two bytes
  EXPECT_EQ(bad_at("x\xE0\x80\x80"), 1u);     // overlong, three
  EXPECT_EQ(bad_at("\xF0\x80\x80\x80"), 0u);  // overlong, four
  EXPECT_EQ(bad_at("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(bad_at("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(bad_at("\xF5\x80\x80\x80"), 0u);
  EXPECT_EQ(bad_at("ok\xE2\x82"), 2u);  // cut short
  EXPECT_EQ(bad_at("\xC3("), 0u);
}

// Every code point's encoding is well-formed; every other one- and two-byte text that a table of code points does not
// produce is not.
TEST(Utf8, AgreesWithTheEncoder) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(find_invalid_utf8(text), std::nullopt) << code;
    if (text.size() > 1) {
      ASSERT_EQ(find_invalid_utf8(std::string_view(text).substr(0, text.size() - 1)), 0u) << code;
    }
  }
}

TEST(Text, CountsOneAndMany) {
  EXPECT_EQ(counted(1, "row"), "1 row");
  EXPECT_EQ(counted(0, "row"), "0 rows");
  EXPECT_EQ(counted(1200, "failed save"), "1,200 failed saves");
}

TEST(Text, IsCutBetweenCharacters) {
  EXPECT_EQ(shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(shorten("abcdefg", 6), "abc...");
  EXPECT_EQ(shorten("ab\xC3\xA9\xC3\xA9\xC3\xA9", 6), "ab...");  // 3 bytes would end inside
  EXPECT_EQ(shorten("a\xC3\xA9\xC3\xA9\xC3\xA9", 6), "a\xC3\xA9...");
  EXPECT_EQ(shorten("\xF0\x9F\x98\x80...", 5), "...");
  EXPECT_EQ(shorten("", 3), "");
}

TEST(Text, OfOneLineMovesNoCursor) {
  EXPECT_EQ(one_line("a\nb\tc \xC3\xA9"), "a\\nb\\tc \xC3\xA9");
  EXPECT_EQ(one_line("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(one_line("a\xC2\x9B"
                     "2Jb"),
            "a\\xc2\\x9b2Jb");  // the control sequence introducer in one character
  EXPECT_EQ(one_line("evil\xE2\x80\xAE gnp.exe \xE2\x81\xA7 \xE2\x80\xA8"),
            "evil\\xe2\\x80\\xae gnp.exe \\xe2\\x81\\xa7 \\xe2\\x80\\xa8");
  EXPECT_EQ(one_line("\xC3\xA9 \xE2\x82\xAC \xE2\x80\x94 \xD8\xA7"), "\xC3\xA9 \xE2\x82\xAC \xE2\x80\x94 \xD8\xA7");
  EXPECT_EQ(without_controls("a\n\tb\x1b[1m\r"), "a\n\tb\\x1b[1m\\x0d");
}

TEST(EditDistance, KnownValues) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
  EXPECT_EQ(edit_distance("loss_mdoe", "loss_mode"), 1u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

TEST(NearestNames, SuggestsWhatWasMeant) {
  const std::vector<std::string> names{"learning_rate",  "loss_mode",       "lr",
                                       "clip_ratio_low", "clip_ratio_high", "total_epochs"};
  EXPECT_THAT(nearest_names("loss_mdoe", names), ElementsAre("loss_mode"));
  EXPECT_THAT(nearest_names("clip_ratio", names), ElementsAre("clip_ratio_low", "clip_ratio_high"));
  EXPECT_THAT(nearest_names("Learning_Rate", names), ElementsAre("learning_rate"));
  EXPECT_TRUE(nearest_names("zzzzzz", names).empty());
  EXPECT_EQ(did_you_mean("clip_ratio_hihg", names), "did you mean 'clip_ratio_high' or 'clip_ratio_low'?");
  EXPECT_EQ(did_you_mean("zzzzzz", names), "");
  EXPECT_TRUE(nearest_names("zz", std::vector<std::string>{"ab"}).empty());  // everything differs
}

TEST(Numbers, Strict) {
  EXPECT_EQ(parse_i64("-42"), -42);
  EXPECT_EQ(parse_i64("9223372036854775808"), std::nullopt);
  for (const char* bad : {"", " 1", "1 ", "+1", "1x", "0x1", "1.0"}) EXPECT_EQ(parse_i64(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_u64("18446744073709551615"), ~uint64_t{0});
  EXPECT_EQ(parse_u64("-1"), std::nullopt);
  EXPECT_EQ(parse_f64("1e-3"), 1e-3);
  for (const char* bad : {"", "inf", "nan", "1e999", "1,5", "0x1p3x"}) EXPECT_EQ(parse_f64(bad), std::nullopt) << bad;
  EXPECT_EQ(format_f64(0.1), "0.1");
  EXPECT_EQ(parse_f64(format_f64(1.0 / 3)), 1.0 / 3);
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(uint64_t{3} << 30), "3.0 GiB");
}

TEST(Pieces, SplitTrimJoin) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim("  "), "");
  EXPECT_EQ(trim("\v\f a \v"), "a");
  EXPECT_EQ(trim("\v a \n", " \n"), "\v a");
  EXPECT_EQ(join(std::vector<std::string>{"x", "y"}, ", "), "x, y");
}

TEST(ByteOrderMark, IsSkippedOnceAtTheStart) {
  EXPECT_EQ(parse::without_byte_order_mark("\xEF\xBB\xBF\xEF\xBB\xBF"
                                           "a"),
            "\xEF\xBB\xBF"
            "a");
  EXPECT_EQ(parse::without_byte_order_mark("a\xEF\xBB\xBF"), "a\xEF\xBB\xBF");
  EXPECT_EQ(parse::without_byte_order_mark("\xEF\xBB"), "\xEF\xBB");
}

TEST(Quote, ShowsBytesThatCannotBeShown) {
  EXPECT_EQ(quote("plain"), "'plain'");
  EXPECT_EQ(quote(std::string_view("a\0\x1b\xFF", 4)), "'a\\x00\\x1b\\xff'");
  EXPECT_EQ(quote("caf\xC3\xA9"), "'caf\xC3\xA9'");
  EXPECT_EQ(quote(std::string(100, 'x'), 5), "'xxxxx...'");
  EXPECT_EQ(find_invalid_utf8(quote("ab\xC3\xA9", 3)), std::nullopt);  // never cut inside a code point
}

TEST(TextPosition, LineAndColumn) {
  EXPECT_EQ(text_position("ab\ncd", 4).line, 2);
  EXPECT_EQ(text_position("ab\ncd", 4).column, 2);
  EXPECT_EQ(text_position("", 10).line, 1);
}

}  // namespace
}  // namespace mortise
