// The readers of YAML, shell and interpolation for the import, on inputs of other frameworks and on bad ones.
#include "import/yaml.h"
#include "config_test_support.h"
#include "import/interpolation.h"
#include "import/source.h"

namespace mortise::test {
namespace {

Json scalar(std::string_view text) {
  const Result<ConfigNode> root = parse_yaml("x: " + std::string(text), "a.yaml");
  if (!root) return "error: " + root.error().to_string();
  return root->find("x")->value;
}

TEST(ImportYaml, ScalarsAreReadAsOmegaConfDoes) {
  for (const char* text : {"", "~", "null", "NULL"}) EXPECT_TRUE(scalar(text).is_null()) << text;
  for (const char* text : {"true", "True", "yes", "On"}) EXPECT_EQ(scalar(text), true) << text;
  for (const char* text : {"false", "FALSE", "no", "off"}) EXPECT_EQ(scalar(text), false) << text;
  EXPECT_EQ(scalar("1_000"), 1000);
  EXPECT_TRUE(scalar("1_000").is_number_integer());
  EXPECT_EQ(scalar("-3"), -3);
  EXPECT_EQ(scalar("+3"), 3);
  EXPECT_EQ(scalar("1e-6"), 1e-6) << "where PyYAML alone gives a text";
  EXPECT_EQ(scalar("1.0e-06"), 1e-6);
  EXPECT_EQ(scalar(".5"), 0.5);
  EXPECT_EQ(scalar("-.5"), -0.5);
  EXPECT_EQ(scalar("2."), 2.0);
  for (const char* text : {"abc", "1.2.3", "1e", "0.5x", "y", "n", "'1'", "\"true\"", "!!str 1"})
    EXPECT_TRUE(scalar(text).is_string()) << text;
  EXPECT_EQ(scalar("'1'"), "1");
  // The other forms of YAML 1.1's integers.
  EXPECT_EQ(scalar("010"), 8);
  EXPECT_EQ(scalar("-0_10"), -8);
  EXPECT_EQ(scalar("0x1F"), 31);
  EXPECT_EQ(scalar("+0b11"), 3);
  EXPECT_EQ(scalar("1:30"), 90);
  EXPECT_EQ(scalar("190:20:30"), 685230);
  EXPECT_EQ(scalar("0"), 0);
  EXPECT_EQ(scalar("0.5"), 0.5);
  for (const char* text :
       {"09", "0x", "0xg", "0x-5", "0b-1", "1:-0", "1:60", "1:300", "08:10", "0o17", "a:1", "999999999999999999:30"})
    EXPECT_TRUE(scalar(text).is_string()) << text;
}

TEST(ImportYaml, TreesKeepPlacesOrderAndTheTextOfScalars) {
  ASSERT_OK_AND_ASSIGN(
      const ConfigNode root,
      parse_yaml("a: {b: no, c: [1, x]}\nlist:\n- k: 1\n- 2\nbase: &b {x: 1, y: 2}\nd:\n  <<: *b\n  y: 3\n", "a.yaml"));
  const ConfigNode* b = root.find("a")->find("b");
  EXPECT_EQ(b->where, "a.yaml:1:5");
  EXPECT_EQ(b->raw, "no");
  EXPECT_EQ(root.find("a")->find("c")->value, Json::array({1, "x"}));
  EXPECT_EQ(root.find("list")->kind, ConfigNode::Kind::kList);
  EXPECT_EQ(root.find("d")->find("x")->value, 1);
  EXPECT_EQ(root.find("d")->find("y")->value, 3) << "its own key wins";
}

TEST(ImportYaml, WhatIsWrongIsToldWithItsPlace) {
  const auto error = [](std::string_view text) { return error_of(parse_yaml(text, "a.yaml")); };
  EXPECT_THAT(error("a: 1\na: 2"), HasSubstr("a.yaml:2:1: 'a' is set twice"));
  EXPECT_THAT(error("a: [1"), ::testing::StartsWith("a.yaml:"));
  EXPECT_THAT(error("a: 1\n---\nb: 2"), HasSubstr("second document"));
  EXPECT_THAT(error("a: !!python/object:os.system x"), HasSubstr("tag"));
  EXPECT_THAT(error("a: *nothing"), HasSubstr("alias"));
  EXPECT_THAT(error("? [1, 2]\n: x"), HasSubstr("key must be a text"));
  EXPECT_THAT(error("a:\n  <<: 1"), HasSubstr("<< needs a table"));
  EXPECT_THAT(error("a: \xff"), HasSubstr("UTF-8"));
  EXPECT_THAT(error(std::string(10'000, '[')), HasSubstr("deep"));
  EXPECT_EQ(error(""), "ok");
}

TEST(ImportYaml, AliasesCannotBlowUp) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    std::string line = "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) line += (k > 0 ? ", " : "") + below;
    bomb += line + "]\n";
  }
  EXPECT_THAT(error_of(parse_yaml(bomb, "a.yaml")), HasSubstr("too many values"));
}

std::vector<PeerSetting> read(const std::string& text, const std::string& where, bool dotted) {
  Result<PeerFile> file = read_peer_source({text, where, dotted}, dotted ? verl_rules() : trl_rules());
  if (file) return std::move(file->settings);
  ADD_FAILURE() << file.error().to_string();
  return {};
}

Json value_of(const std::vector<PeerSetting>& settings, std::string_view name) {
  for (const PeerSetting& setting : settings) {
    if (setting.name == name) return setting.value;
  }
  return "not there";
}

TEST(ImportSource, ArgumentListsAreReadAsTheShellAndArgparseDo) {
  const auto settings = read(R"(#!/bin/bash
# a comment
CUDA_VISIBLE_DEVICES=0 \
swift rlhf \
    --rlhf_type grpo --reward_funcs accuracy format \
    --learning-rate=1e-6 \
    --use_vllm \
    --loss_type "dapo" --model 'my model' \
    --top_k -1 --generation_kwargs '{"min_p": 0.1}' --beta 0.1 --beta 0.2
)",
                             "run.sh", false);
  EXPECT_EQ(value_of(settings, "rlhf_type"), "grpo");
  EXPECT_EQ(value_of(settings, "reward_funcs"), Json::array({"accuracy", "format"}));
  EXPECT_EQ(value_of(settings, "learning_rate"), 1e-6);
  EXPECT_EQ(value_of(settings, "use_vllm"), true);
  EXPECT_EQ(value_of(settings, "loss_type"), "dapo");
  EXPECT_EQ(value_of(settings, "model"), "my model");
  EXPECT_EQ(value_of(settings, "top_k"), -1);
  EXPECT_EQ(value_of(settings, "generation_kwargs"), Json({{"min_p", 0.1}}));
  EXPECT_EQ(value_of(settings, "beta"), 0.2) << "the last one counts";
  EXPECT_EQ(settings.size(), 9U);
  EXPECT_EQ(settings[0].where, "run.sh:5");
  EXPECT_EQ(value_of(read("--no_shuffle_dataset --no-log_completions", "run.sh", false), "shuffle_dataset"), false);
  EXPECT_EQ(read("accelerate launch --num_processes 8 train.py --beta 0.5", "run.sh", false).size(), 1U);
}

TEST(ImportSource, HydraOverridesBecomeDottedNames) {
  const auto settings = read(R"(set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.rollout.n=5 +data.seed=7 \
    trainer.logger='["console","wandb"]' \
    +data.apply_chat_template_kwargs='{a:{b:1,"c,:d":[x:y,{e:2}]},url:http://h:8}' \
    actor_rollout_ref.rollout.val_kwargs='{n:4}' "$@")",
                             "run.sh", true);
  EXPECT_EQ(value_of(settings, "algorithm.adv_estimator"), "grpo");
  EXPECT_EQ(value_of(settings, "rollout.n"), 5);
  EXPECT_EQ(value_of(settings, "data.seed"), 7);
  EXPECT_EQ(value_of(settings, "trainer.logger"), Json::array({"console", "wandb"}));
  EXPECT_EQ(value_of(settings, "rollout.val_kwargs.n"), 4);
  EXPECT_EQ(value_of(settings, "data.apply_chat_template_kwargs"),
            parse_json(R"({"a": {"b": 1, "c,:d": ["x:y", {"e": 2}]}, "url": "http://h:8"})", "").value());
}

// What comes behind the arguments of a command is another's.
TEST(ImportSource, TheShellsOperatorsEndTheArguments) {
  for (const std::string end : {" 2>&1 | tee log", " > log", " && echo done", " &> log", " 2>> err; echo"}) {
    EXPECT_EQ(read("trl grpo --beta 0.5 --stop_words '|' a" + end, "run.sh", false).size(), 2U) << end;
    EXPECT_EQ(read("python3 -m verl.trainer.main_ppo rollout.n=5" + end, "run.sh", true).size(), 1U) << end;
  }
}

TEST(ImportSource, AJsonFileHasLinesAndColumns) {
  const auto settings = read("{\n  \"beta\": 0.5,\n  \"chat_template_kwargs\": {\"a\": 1}}", "run.json", false);
  ASSERT_EQ(settings.size(), 2U);
  EXPECT_EQ(settings[0].where, "run.json:2:3");
  EXPECT_EQ(settings[1].where, "run.json:3:3");
  EXPECT_EQ(settings[1].value, Json({{"a", 1}}));
  const auto nested = read("{\"trainer\": {\n\"save_freq\": 5}}", "run.json", true);
  ASSERT_EQ(nested.size(), 1U);
  EXPECT_EQ(nested[0].where, "run.json:2:1");
}

TEST(ImportSource, VariablesAndStrayWordsAreRefused) {
  const auto error = [](const std::string& text, bool dotted) {
    return error_of(read_peer_source({text, "run.sh", dotted}, dotted ? verl_rules() : trl_rules()));
  };
  EXPECT_THAT(error("--beta 0.1 $OPTIONS", false), "ok") << "a value like any other; who reads it tells";
  EXPECT_THAT(error("$OPTIONS --beta 0.1", false), "ok") << "in front of the arguments";
  EXPECT_THAT(
      error("rollout.n=4 $OPTIONS", true),
      HasSubstr(
          "run.sh:1: '' is not known: nothing sets the variable OPTIONS; give its value with --set OPTIONS=VALUE"));
  EXPECT_THAT(error("--beta 0.1 'x", false), HasSubstr("not closed"));
  EXPECT_THAT(error("rollout.n=4 stray", true), HasSubstr("'stray' is not key=value"));
  EXPECT_THAT(error("rollout.n=4\nstray", true), "ok") << "another command";
  EXPECT_THAT(error("[1, 2]", false), HasSubstr("expected an option, found"));
  EXPECT_THAT(error("{\"a\": 1,}", false), HasSubstr("run.sh:1"));
}

TEST(ImportSource, InterpolationsAreResolved) {
  const auto settings = read(
      "a: {x: 3, y: '${.x}', z: '${oc.select:a.nothing,7}', w: '${oc.select:a.nothing,${a.x}}', t: 'n${a.x}m${a.y}',\n"
      "    lost: '${b.c}', round: '${a.round}'}\n",
      "a.yaml", true);
  // No rule knows these names, so the table is one setting.
  ASSERT_EQ(settings.size(), 1U);
  std::vector<PeerSetting> flat;
  for (const auto& [key, value] : settings[0].value.items())
    flat.push_back({"a." + key, "a." + key, value, value.is_string() ? value.get<std::string>() : value.dump(), ""});
  resolve_interpolations(flat);
  EXPECT_EQ(value_of(flat, "a.y"), 3);
  EXPECT_EQ(value_of(flat, "a.z"), 7);
  EXPECT_EQ(value_of(flat, "a.w"), 3);
  EXPECT_EQ(value_of(flat, "a.t"), "n3m3");
  EXPECT_EQ(value_of(flat, "a.lost"), "${b.c}");
  EXPECT_EQ(value_of(flat, "a.round"), "${a.round}");
}

}  // namespace
}  // namespace mortise::test
