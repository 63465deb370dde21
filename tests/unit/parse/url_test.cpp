// Logins in URLs.
#include "parse/url.h"

#include <gtest/gtest.h>

namespace mortise::parse {
namespace {

TEST(Url, LoginsAreReplacedWhereverTheyAre) {
  EXPECT_EQ(redact_userinfo("https://user:token@host/path?q=1"), "https://REDACTED@host/path?q=1");
  EXPECT_EQ(redact_userinfo("url: 'http://token@host' failed"), "url: 'http://REDACTED@host' failed");
  EXPECT_EQ(redact_userinfo("a http://u:p@h b ftp://x:y@z:8/ c"), "a http://REDACTED@h b ftp://REDACTED@z:8/ c");
  EXPECT_EQ(redact_userinfo("https://u:p@ss@host"), "https://REDACTED@host") << "all that stands before the last @";
  EXPECT_EQ(redact_userinfo("https://u:p%2F@[::1]:80/"), "https://REDACTED@[::1]:80/");
  EXPECT_EQ(redact_userinfo("https://REDACTED@host"), "https://REDACTED@host");
  EXPECT_EQ(redact_userinfo("https://u:p@"), "https://REDACTED@");
}

TEST(Url, OtherTextIsLeftAlone) {
  for (const char* text : {"", "://", "https://host/a@b", "https://host?x=a@b", "mail me@host", "http://", "a://b c@d",
                           "https://host:80 and user@host", "\"https://host\", \"a@b\""})
    EXPECT_EQ(redact_userinfo(text), text);
}

TEST(Url, ItIsKnownThatALoginIsGone) {
  EXPECT_TRUE(is_redacted("https://REDACTED@host"));
  EXPECT_FALSE(is_redacted("https://host"));
  EXPECT_FALSE(is_redacted("REDACTED@host"));
}

}  // namespace
}  // namespace mortise::parse
