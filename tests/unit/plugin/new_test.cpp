// `mortise plugin new`: what it refuses, and how it replaces the words of a template. tests/sdk/templates.sh builds,
// tests and trains with the projects.
#include "../../../apps/mortise/plugin_new.h"

#include "foundation/base/env.h"
#include "plugin/host/kinds/kinds.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(PluginNewTest, PackPluginAndFolderComeFromTheId) {
  ASSERT_OK_AND_ASSIGN(const NewPlugin plain, plan_new_plugin("reward", "acme.my-match", "cpp"));
  EXPECT_EQ(plain.pack, "acme.my-match");
  EXPECT_EQ(plain.name, "my_match");
  EXPECT_EQ(plain.dir, Path("acme.my-match"));
  ASSERT_OK_AND_ASSIGN(const NewPlugin both, plan_new_plugin("mortise.policy_loss/1", "acme.losses/tilted", "c"));
  EXPECT_EQ(both.kind, "policy_loss");
  EXPECT_EQ(both.pack, "acme.losses");
  EXPECT_EQ(both.name, "tilted");
}

TEST(PluginNewTest, BadNamesAndLanguages) {
  EXPECT_THAT(error_of(plan_new_plugin("reward", "match", "cpp")), HasSubstr("'match' is not dotted lower-case words"));
  EXPECT_THAT(error_of(plan_new_plugin("reward", "mortise.match", "cpp")), HasSubstr("are kept for the packs of"));
  EXPECT_THAT(error_of(plan_new_plugin("reward", "acme.x/Bad", "cpp")), HasSubstr("the plugin name 'Bad'"));
  EXPECT_THAT(error_of(plan_new_plugin("reward", "acme.x", "go")), HasSubstr("use one of: c, cpp, torch, cuda, rust"));
}

TEST(PluginNewTest, WritesTheTemplatesWithTheirWordsReplaced) {
  const test::TempDir temp;
  const Path share = temp / "share";
  std::filesystem::create_directories(share / "templates/rust/common");
  std::filesystem::create_directories(share / "templates/rust/reward/src");
  temp.write("share/templates/rust/common/build.sh.in", "#!/bin/sh\n@ID@ @NAME@ @CLASS@ @KIND@ @SDK@ a@b.c @OTHER@");
  temp.write("share/templates/rust/common/notes.txt", "not a template");
  temp.write("share/templates/rust/reward/src/@NAME@.rs.in", "struct @CLASS@;");
  ASSERT_OK_AND_ASSIGN(NewPlugin plan, plan_new_plugin("reward", "acme.x/exact_match", "rust"));
  plan.share = share;
  plan.dir = temp / "made";
  ASSERT_OK_AND_ASSIGN(const auto files, write_new_plugin(plan));
  EXPECT_THAT(files, ElementsAre("build.sh", "src/exact_match.rs"));
  EXPECT_EQ(default_env().read_file(temp / "made/build.sh").value(),
            "#!/bin/sh\nacme.x exact_match ExactMatch reward " + share.string() + " a@b.c @OTHER@");
  EXPECT_EQ(default_env().read_file(temp / "made/src/exact_match.rs").value(), "struct ExactMatch;");
  EXPECT_NE(std::filesystem::status(temp / "made/build.sh").permissions() & std::filesystem::perms::owner_exec,
            std::filesystem::perms::none);
  ASSERT_OK_AND_ASSIGN(NewPlugin taken, plan_new_plugin("reward", "acme.option", "rust"));
  taken.share = share;
  taken.dir = temp / "taken";
  ASSERT_OK(write_new_plugin(taken));
  EXPECT_EQ(default_env().read_file(temp / "taken/src/option.rs").value(), "struct OptionReward;");
  // Never over something that is there; never half a project.
  EXPECT_THAT(error_of(write_new_plugin(plan)), HasSubstr("the path exists and is not an empty folder"));
  plan.dir = temp / "other";
  plan.kind = "kl_estimator";
  EXPECT_THAT(error_of(write_new_plugin(plan)),
              HasSubstr("no template of the kind kl_estimator in rust: only of reward"));
  plan.lang = "c";
  EXPECT_THAT(error_of(write_new_plugin(plan)), HasSubstr("the templates of the SDK are missing"));
  EXPECT_FALSE(std::filesystem::exists(temp / "other"));
}

TEST(PluginNewTest, EveryPromisedTemplateIsThere) {
  const Path templates = Path(MORTISE_SOURCE_DIR) / "sdk/templates";
  for (const std::string lang : {"c", "cpp", "torch", "cuda", "rust"}) {
    for (const std::string& kind : kind_names()) {
      const bool promised =
          kind == "policy_loss" || (kind == "reward" && lang != "cuda") || (lang != "torch" && lang != "cuda");
      EXPECT_EQ(std::filesystem::is_directory(templates / lang / kind), promised) << lang << " " << kind;
    }
  }
}

}  // namespace
}  // namespace mortise
