// TOML with the position of every value.
#include "foundation/formats/toml.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Toml, KeepsPositions) {
  const test::TempDir dir;
  const Path path = dir.write("run.toml", "# run\n[actor.optim]\nlr = 1e-6\n");
  ASSERT_OK_AND_ASSIGN(const toml::table table, read_toml_file(default_env(), path));
  const toml::node_view lr = table["actor"]["optim"]["lr"];
  EXPECT_EQ(lr.value<double>(), 1e-6);
  EXPECT_EQ(toml_where(path.string(), *lr.node()), path.string() + ":3:6");
}

TEST(Toml, ErrorsHaveFileLineColumn) {
  const auto broken = parse_toml("a = 1\nb = = 2\n", "x.toml");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().kind, ErrorKind::kConfig);
  EXPECT_THAT(error_of(broken), StartsWith("x.toml:2:"));
  EXPECT_EQ(error_of(parse_toml("a = 1\na = 2\n", "x.toml")),
            "x.toml:2:5: the key 'a' is there twice; delete one of the two");
  EXPECT_EQ(error_of(parse_toml("[t]\na = 1\n[u]\n[t]\nb = 2\n", "x.toml")),
            "x.toml:4:1: the table 't' is there twice; put its keys under one header");
  EXPECT_THAT(error_of(parse_toml("a = \"\xFF\"", "x.toml")), HasSubstr("x.toml:1:"));
  const auto missing = read_toml_file(default_env(), "/no/such/run.toml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kConfig);
  EXPECT_THAT(error_of(missing), HasSubstr("/no/such/run.toml"));
}

// Every prefix of a valid file is either refused or is itself a valid file: no crash, no exception.
TEST(Toml, PrefixesNeverCrash) {
  const std::string text =
      "t = [1, 2.5, \"x\"]\n[a.b]\nd = 2021-01-01T00:00:00Z\ns = '''multi\nline'''\n[[r]]\nk = {x = 1}\n";
  for (size_t n = 0; n <= text.size(); ++n) (void)parse_toml(std::string_view(text).substr(0, n), "p.toml").ok();
  EXPECT_OK(parse_toml(text, "p.toml"));
}

}  // namespace
}  // namespace mortise
