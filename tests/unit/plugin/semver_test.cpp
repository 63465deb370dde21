// Versions and version ranges.
#include "plugin/pack/semver.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

TEST(SemVerTest, OrderIsThatOfTheStandard) {
  const char* const ascending[] = {"0.9.9",      "1.0.0-alpha",  "1.0.0-alpha.1", "1.0.0-alpha.beta",
                                   "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
                                   "1.0.0",      "1.0.1",        "1.1.0",         "2.0.0"};
  for (size_t i = 0; i + 1 < std::size(ascending); ++i) {
    const auto a = SemVer::parse(ascending[i]), b = SemVer::parse(ascending[i + 1]);
    ASSERT_TRUE(a && b) << ascending[i];
    EXPECT_TRUE(compare(*a, *b) < 0) << ascending[i] << " < " << ascending[i + 1];
    EXPECT_TRUE(compare(*b, *a) > 0);
  }
  EXPECT_TRUE(compare(*SemVer::parse("1.2.3+build.5"), *SemVer::parse("1.2.3")) == 0);
}

TEST(SemVerTest, RefusesWhatIsNoVersion) {
  for (const char* text : {"", "1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.x", "1.2.-3", "1.2.3-", "1.2.3-a..b",
                           "1.2.3 ", "99999999999999999999.0.0"}) {
    EXPECT_FALSE(SemVer::parse(text)) << text;
  }
}

struct RangeCase {
  const char* range;
  const char* yes;
  const char* no;
};
class RangeTest : public testing::TestWithParam<RangeCase> {};

TEST_P(RangeTest, Matches) {
  const auto range = VersionRange::parse(GetParam().range);
  ASSERT_TRUE(range.ok()) << range.error().to_string();
  EXPECT_TRUE(range->matches(*SemVer::parse(GetParam().yes))) << GetParam().range << " has " << GetParam().yes;
  EXPECT_FALSE(range->matches(*SemVer::parse(GetParam().no))) << GetParam().range << " has not " << GetParam().no;
}

INSTANTIATE_TEST_SUITE_P(All, RangeTest,
                         testing::Values(RangeCase{"^1.2", "1.9.0", "1.1.9"}, RangeCase{"^1.2", "1.2.0", "2.0.0"},
                                         RangeCase{"^0.2.3", "0.2.9", "0.3.0"}, RangeCase{"^0.0.3", "0.0.3", "0.0.4"},
                                         RangeCase{"^1", "1.0.0", "2.0.0"}, RangeCase{"~1.2.3", "1.2.9", "1.3.0"},
                                         RangeCase{"~1", "1.9.0", "2.0.0"}, RangeCase{"=1.0.0", "1.0.0", "1.0.1"},
                                         RangeCase{"1.0.0", "1.0.0", "1.0.1"}, RangeCase{"1.2", "1.2.7", "1.3.0"},
                                         RangeCase{">=1.0 <2.0", "1.5.0", "2.0.0"},
                                         RangeCase{">1.0.0,<=1.2.0", "1.2.0", "1.0.0"},
                                         RangeCase{"^1.0.0", "1.0.1", "1.1.0-rc.1"},
                                         RangeCase{">=1.0.0-rc.1", "1.0.0-rc.2", "1.0.0-beta"},
                                         RangeCase{"<1.0.0", "0.9.0", "1.0.0-rc.1"}));

TEST(RangeTest, RefusesWhatIsNoRange) {
  for (const char* text : {"", " ", "^", "^^1", "=>1.0", "1.x", "latest", "~1.2.3.4", ">= 1.0"}) {
    EXPECT_FALSE(VersionRange::parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace mortise
