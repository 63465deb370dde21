// Where packs are searched, and in which order.
#include "plugin/host/search.h"

#include <cstdlib>

#include "support/environment.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::Environment;

TEST(SearchTest, OrderIsConfigEnvironmentUserInstalled) {
  const Environment path("MORTISE_PLUGIN_PATH", "/one:/two");
  const Environment data("XDG_DATA_HOME", "/data");
  const Environment home("HOME", "/home/me");
  RegistryOptions options;
  options.files = {"/files/a.so"};
  options.paths = {"~/packs"};
  options.builtin_dir = "/builtin";
  std::vector<std::string> order;
  for (const SearchPlace& place : search_places(options)) order.push_back(place.path.string());
  EXPECT_THAT(order, testing::ElementsAre("/files/a.so", "/home/me/packs", "/one", "/two", "/data/mortise/store",
                                          "/data/mortise/packs", "/builtin"));
}

TEST(SearchTest, NeverTheCurrentDirectory) {
  const Environment path("MORTISE_PLUGIN_PATH", ":.:relative::/abs:");
  const Environment data("XDG_DATA_HOME", "relative/data");
  const Environment home("HOME", "");
  RegistryOptions options;
  options.builtin_dir = "/builtin";
  std::vector<std::string> order;
  for (const SearchPlace& place : search_places(options)) {
    if (place.refused.empty()) order.push_back(place.path.string());
  }
  EXPECT_THAT(order, testing::ElementsAre("/abs", "/builtin"));
  options.use_user_packs = false;
  ASSERT_OK_AND_ASSIGN(const PluginRegistry registry, PluginRegistry::open(options));
  ASSERT_EQ(registry.rejected().size(), 2U);  // "." and "relative" are said to be left out
  EXPECT_THAT(registry.rejected()[1].reason.to_string(),
              testing::HasSubstr("relative: MORTISE_PLUGIN_PATH takes absolute folders only"));
}

TEST(SearchTest, BuiltinsLieBesideTheProgram) {
  EXPECT_EQ(default_builtin_dir(), Path(MORTISE_BINARY_DIR) / "lib" / "mortise" / "packs");
}

TEST(SearchTest, Globs) {
  EXPECT_TRUE(glob_matches("acme.*", "acme.match"));
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*.ma?ch", "acme.match"));
  EXPECT_TRUE(glob_matches("a*b*c", "axxbyybzzc"));
  EXPECT_FALSE(glob_matches("a*b*c", "axxbyy"));
  EXPECT_FALSE(glob_matches("acme", "acme.match"));
  EXPECT_FALSE(glob_matches("", "x"));
}

TEST(SearchTest, DisabledPacksAreNotUsedAndSaySo) {
  const Environment disable("MORTISE_PLUGINS_DISABLE", "other.*, test.twin_a");
  RegistryOptions options = test::only({"twin_a", "twin_b"});
  options.use_environment = true;
  const Environment path("MORTISE_PLUGIN_PATH", "");
  auto registry = PluginRegistry::open(options);
  ASSERT_OK(registry);
  ASSERT_EQ(registry->candidates().size(), 1U);
  EXPECT_EQ(registry->candidates()[0].info.id, "test.twin_b");
  ASSERT_EQ(registry->rejected().size(), 1U);
  EXPECT_THAT(registry->rejected()[0].reason.what, testing::HasSubstr("MORTISE_PLUGINS_DISABLE=test.twin_a"));
}

}  // namespace
}  // namespace mortise
