// Secrets are replaced by the names of their variables.
#include "foundation/base/secrets.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace mortise {
namespace {

TEST(Secrets, ValuesBecomeNames) {
  ::setenv("MORTISE_TEST_KEY", "abc-123-xyz", 1);
  add_secret_variable("MORTISE_TEST_KEY");
  add_secret_variable("MORTISE_TEST_NOT_SET");
  add_secret("LONGER", "abc-123-xyz-and-more");
  add_secret("SHORT", "7");
  add_secret("NAMED_AS_ITS_VALUE", "NAMED_AS_ITS_VALUE");
  EXPECT_EQ(redacted("key abc-123-xyz, abc-123-xyz"), "key $MORTISE_TEST_KEY, $MORTISE_TEST_KEY");
  EXPECT_EQ(redacted("abc-123-xyz-and-more"), "$LONGER");
  EXPECT_EQ(redacted("17"), "17") << "too short to be told from an ordinary word";
  EXPECT_EQ(redacted("NAMED_AS_ITS_VALUE"), "$NAMED_AS_ITS_VALUE");
  EXPECT_EQ(redacted("http://u:abc-123-xyz@h"), "http://REDACTED@h");
  ::unsetenv("MORTISE_TEST_KEY");
}

TEST(Secrets, References) {
  EXPECT_EQ(secret_reference("env:API_KEY"), "API_KEY");
  for (const char* text : {"", "env:", "env:1A", "env:A B", "env:a/b", "ENV:A", "xenv:A", "env: A"})
    EXPECT_EQ(secret_reference(text), "") << text;
}

}  // namespace
}  // namespace mortise
