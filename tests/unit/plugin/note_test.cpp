// The note in a pack that describes its plugins.
#include "plugin/pack/note.h"

#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using testing::HasSubstr;

// A whole note with one part replaced.
std::string note(const std::string& from = "", const std::string& to = "") {
  std::string text =
      R"({"abi":1,"abi_minor":1,"min_host_minor":1,"pack":{"id":"acme.match","version":"1.0.0"},)"
      R"("plugins":[{"kind":"mortise.policy_loss/1","name":"tilted","summary":"s","doc":null,"flags":2,)"
      R"("coupling":"row",)"
      R"("requires":["ref_log_prob"],"consumes":["rollout_is_weights"],)"
      R"("params":[{"name":"tau","type":"f64","default":"0.5","min":0,"max":1,"doc":"t"},)"
      R"({"name":"mode","type":"text","default":null,"choices":["a","b"],"doc":""}]}],"needs":["libz.so.1"],)"
      R"("build":{"compiler":"GNU"},"later":{"unknown":true}})";
  if (!from.empty()) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  return text;
}

TEST(NoteTest, ReadsEveryField) {
  ASSERT_OK_AND_ASSIGN(const PackInfo pack, parse_note(note(), "x.so"));
  EXPECT_EQ(pack.id, "acme.match");
  EXPECT_EQ(pack.version, "1.0.0");
  EXPECT_EQ(pack.tier, "portable");
  EXPECT_EQ(pack.allowed_needs, std::vector<std::string>{"libz.so.1"});
  const PluginInfo* plugin = pack.find_plugin("mortise.policy_loss/1", "tilted");
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->coupling, Coupling::kRow);
  EXPECT_EQ(plugin->flags, 2U);
  EXPECT_TRUE(plugin->requires_input("ref_log_prob"));
  EXPECT_TRUE(plugin->consumes_stage("rollout_is_weights"));
  EXPECT_FALSE(plugin->consumes_stage("entropy"));
  ASSERT_NE(plugin->find_param("tau"), nullptr);
  EXPECT_EQ(plugin->find_param("tau")->range, (ParamRange{0, 1}));
  EXPECT_EQ(plugin->find_param("mode")->default_text, std::nullopt);
  EXPECT_EQ(plugin->find_param("mode")->choices.size(), 2U);
}

TEST(NoteTest, OpenEndsAndTorch) {
  ASSERT_OK_AND_ASSIGN(const PackInfo pack, parse_note(note(R"("min":0,"max":1)", R"("min":0)"), "x.so"));
  EXPECT_EQ(pack.plugins[0].params[0].range->min, 0);
  EXPECT_TRUE(std::isinf(pack.plugins[0].params[0].range->max));
  ASSERT_OK_AND_ASSIGN(const PackInfo torch, parse_note(note(R"("compiler":"GNU")", R"("torch":"2.11.0")"), "x.so"));
  EXPECT_EQ(torch.tier, "torch-locked");
  EXPECT_EQ(torch.torch, "2.11.0");
}

TEST(NoteTest, TheCudaThatThePackWasBuiltWith) {
  EXPECT_EQ(*cuda_of_note(note(), "x.so"), "");
  EXPECT_EQ(*cuda_of_note(note(R"("compiler":"GNU")", R"("cuda":"12.4")"), "x.so"), "12.4");
  EXPECT_EQ(*cuda_of_note(note(R"("build":{"compiler":"GNU"},)", ""), "x.so"), "");
  for (const char* wrong : {R"("cuda":12.4)", R"("cuda":"12.")", R"("cuda":"12.4.1")", R"("cuda":"new")"})
    EXPECT_THAT(error_of(cuda_of_note(note(R"("compiler":"GNU")", wrong), "x.so")), HasSubstr("cuda")) << wrong;
  EXPECT_THAT(error_of(cuda_of_note("{", "x.so")), HasSubstr("damaged"));
}

TEST(NoteTest, WhatMinor2Added) {
  const std::string mode = R"("choices":["a","b"])";
  const auto role = [&](const std::string& text) {
    auto pack = parse_note(note(mode, R"("role":")" + text + R"(")"), "x.so");
    EXPECT_TRUE(pack.ok());
    return pack.ok() ? pack->plugins[0].find_param("mode")->role : ParamRole::kPlain;
  };
  EXPECT_EQ(role("column"), ParamRole::kColumn);
  EXPECT_EQ(role("file"), ParamRole::kFile);
  EXPECT_EQ(role("folder"), ParamRole::kFolder);
  EXPECT_EQ(role("model"), ParamRole::kModel);
  EXPECT_EQ(role("secret"), ParamRole::kSecret);
  EXPECT_EQ(role("of a later minor"), ParamRole::kPlain);
  ASSERT_OK_AND_ASSIGN(const PackInfo pack,
                       parse_note(note(R"("requires":)", R"("update_metrics":["a=b/c"],"requires":)"), "x.so"));
  EXPECT_EQ(pack.plugins[0].update_metrics, std::vector<std::string>{"a=b/c"});
  ASSERT_OK_AND_ASSIGN(const PackInfo old, parse_note(note(), "x.so"));
  EXPECT_TRUE(old.plugins[0].update_metrics.empty());
  EXPECT_EQ(old.plugins[0].params[1].role, ParamRole::kPlain);
}

struct BadNote {
  const char* from;
  const char* to;
  const char* says;
};
class BadNoteTest : public testing::TestWithParam<BadNote> {};

TEST_P(BadNoteTest, IsRefusedWithItsReason) {
  const auto result = parse_note(note(GetParam().from, GetParam().to), "x.so");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kPlugin);
  EXPECT_THAT(result.error().to_string(), HasSubstr(GetParam().says));
  EXPECT_THAT(result.error().to_string(), HasSubstr("x.so"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadNoteTest,
    testing::Values(BadNote{R"("abi":1)", R"("abi":2)", "built for plugin ABI 2, this program reads ABI 1 and 0"},
                    BadNote{R"("abi":1,)", "", "'abi' is missing"},
                    BadNote{R"("abi":1)", R"("abi":"0")", "'abi' must be an integer"},
                    BadNote{R"("abi":1)", R"("abi":99999999999999999999)", "'abi' must be an integer"},
                    BadNote{R"("id":"acme.match")", R"("id":"Acme")", "pack id 'Acme'"},
                    BadNote{R"("id":"acme.match")", R"("id":"../../etc")", "pack id"},
                    BadNote{R"("version":"1.0.0")", R"("version":"one")", "version 'one'"},
                    BadNote{R"("name":"tilted")", R"("name":"Til/ted")", "plugin name 'Til/ted'"},
                    BadNote{R"("coupling":"row")", R"("coupling":"pair")", "coupling 'pair'"},
                    BadNote{R"("type":"f64")", R"("type":"float")", "must be f64, i64, bool or text"},
                    BadNote{R"("default":"0.5")", R"("default":"7")", "default of parameter 'tau'"},
                    BadNote{R"("default":"0.5")", R"("default":"x")", "default of parameter 'tau'"},
                    BadNote{R"("name":"mode")", R"("name":"tau")", "two parameters 'tau'"},
                    BadNote{R"("requires":["ref_log_prob"])", R"("requires":"all")", "array of strings"},
                    BadNote{R"("flags":2)", R"("flags":-1)", "'flags' must be an integer"},
                    BadNote{R"("plugins":[)", R"("plugins":7,"x":[)", "'plugins' must be an array"},
                    BadNote{R"({"abi")", R"({{"abi")", "x.so"}));

TEST(NoteTest, RefusesTwoPluginsOfOneName) {
  const std::string twice = R"({"abi":1,"abi_minor":1,"pack":{"id":"a.b","version":"1.0.0"},)"
                            R"("plugins":[{"kind":"k/1","name":"x"},{"kind":"k/1","name":"x"}]})";
  EXPECT_THAT(error_of(parse_note(twice, "x.so")), HasSubstr("two plugins 'x'"));
}

TEST(NoteTest, DeepNestingIsRefusedNotCrashed) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_FALSE(parse_note(deep, "x.so").ok());
}

TEST(NoteTest, NobodyIsAskedToCorrectWhatAToolWrites) {
  const auto damaged = parse_note(note(R"("abi":1)", R"("abi":1 0)"), "x.so");
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.error().what, testing::StartsWith("the metadata note is damaged: "));
  EXPECT_THAT(damaged.error().next, testing::AllOf(HasSubstr("build the pack again"), HasSubstr("mortise_add_pack()")));
}

}  // namespace
}  // namespace mortise
