// `mortise plugin ...` end to end, in this process: the golden tensors of the built-in packs through `plugin eval`, and
// what people read from list and describe.
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "../../../apps/mortise/commands.h"
#include "foundation/base/log.h"
#include "foundation/formats/json.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/safetensors.h"
#include "support/close_to.h"
#include "support/this_build.h"
#include "test_packs.h"

namespace mortise {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Ran {
  int code = 0;
  std::string out, err;
};

Ran mortise_plugin(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  auto* const old_out = std::cout.rdbuf(out.rdbuf());
  auto* const old_err = std::cerr.rdbuf(err.rdbuf());
  Ran ran;
  ran.code = cmd_plugin(args);
  std::cout.rdbuf(old_out);
  std::cerr.rdbuf(old_err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

Json parsed(const std::string& text) {
  auto json = parse_json(text, "output");
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

// The cases in tests/golden of the built-in packs and of what the host adds. The value loss is the engine's own, and
// tests/golden/objective_test.cpp compares it. Under a sanitizer, where a case takes half
// a second, an eighth of them: tests/plugins runs them all there, without the command.
std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const std::string folder : {"tensors", "plugin"}) {
    auto names = default_env().list_dir(Path(MORTISE_SOURCE_DIR) / "tests/golden" / folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (name.ends_with(".safetensors") && !name.starts_with("value_loss.")) files.push_back(folder + "/" + name);
    }
  }
  if (!test::kSanitized) return files;
  std::vector<std::string> some;
  for (size_t i = 0; i < files.size(); i += 8) some.push_back(files[i]);
  return some;
}

class GoldenEvalTest : public testing::TestWithParam<std::string> {};

void compare_tensors(const SafetensorsFile& expected, const SafetensorsFile& actual) {
  for (const TensorView& tensor : expected.tensors()) {
    if (!tensor.name.starts_with("expected.")) continue;
    const TensorView* got = actual.find(tensor.name.substr(9));
    ASSERT_NE(got, nullptr) << tensor.name;
    EXPECT_EQ(got->shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(test::all_close(got->as<float>(), tensor.as<float>(), 1e-5)) << tensor.name;
  }
}

TEST_P(GoldenEvalTest, GivesThePublishedNumbers) {
  const Path path = Path(MORTISE_SOURCE_DIR) / "tests/golden" / GetParam();
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(default_env(), path));
  const auto& about = file.metadata();
  const std::string kind = about.at("kind"), plugin = about.at("plugin");
  const test::TempDir temp;
  std::vector<std::string> args = {
      "eval", kind, plugin, "--inputs", path.string(), "--outputs", (temp / "out.safetensors").string()};
  const Json params = parsed(about.at("params"));
  for (const auto& item : params.items()) {
    args.emplace_back("--set");
    args.push_back(item.key() + "=" +
                   (item.value().is_string() ? item.value().get<std::string>() : dump_json(item.value())));
  }
  const Ran ran = mortise_plugin(args);
  ASSERT_EQ(ran.code, 0) << ran.err;
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile out, SafetensorsFile::open(default_env(), temp / "out.safetensors"));
  compare_tensors(file, out);
  const Json metrics = parsed(ran.out)["metrics"];
  const Json published = parsed(about.at("metrics"));
  for (const auto& item : published.items()) {
    ASSERT_TRUE(metrics.contains(item.key())) << item.key() << " not in " << ran.out;
    EXPECT_NEAR(metrics[item.key()].get<double>(), item.value().get<double>(), 1e-5) << item.key();
  }

  // In a worker: the same bits.
  args[6] = (temp / "isolated.safetensors").string();
  for (const char* word : {"--isolation", "process"}) args.emplace_back(word);
  const Ran isolated = mortise_plugin(args);
  ASSERT_EQ(isolated.code, 0) << isolated.err;
  EXPECT_EQ(isolated.out, ran.out);
  EXPECT_EQ(default_env().read_file(temp / "isolated.safetensors").value(),
            default_env().read_file(temp / "out.safetensors").value());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenEvalTest, testing::ValuesIn(golden_files()), [](const auto& name) {
  std::string text = name.param;
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return text;
});

TEST(GoldenTest, ThereAreCases) { EXPECT_GT(golden_files().size(), 20U); }

// --- a loss of known numbers -----------------------------------------------------------------------------------------

class EvalTest : public testing::Test {
 protected:
  // Rows of 3 and 1 unmasked tokens; plain loss -A log_prob.
  Path inputs(const std::string& extra = "", const std::vector<float>& mask = {1, 1, 1, 1, 0, 0}) {
    const std::vector<float> log_prob = {-1, -2, -3, -4, -5, -6}, advantages = {1, -1}, is_weights = {1, 1, 1, 2, 2, 2};
    std::vector<TensorView> tensors = {
        view_of<float>("in.log_prob", log_prob, {2, 3}), view_of<float>("in.old_log_prob", log_prob, {2, 3}),
        view_of<float>("in.advantages", advantages, {2}), view_of<float>("in.response_mask", mask, {2, 3}),
        view_of<float>("expected.loss", advantages, {2})};
    if (!extra.empty()) tensors.push_back(view_of<float>(extra, is_weights, {2, 3}));
    EXPECT_OK(write_safetensors_file(default_env(), temp_ / "in.safetensors", tensors));
    return temp_ / "in.safetensors";
  }
  Ran eval(const Path& in, const std::vector<std::string>& more) {
    std::vector<std::string> args = {"eval",
                                     "policy_loss",
                                     "plain",
                                     "--plugin-path",
                                     test::pack_dir("rude").string(),
                                     "--inputs",
                                     in.string(),
                                     "--outputs",
                                     (temp_ / "out.safetensors").string()};
    args.insert(args.end(), more.begin(), more.end());
    return mortise_plugin(args);
  }
  float loss(const std::vector<std::string>& more, const std::string& extra = "") {
    const Ran ran = eval(inputs(extra), more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    auto out = SafetensorsFile::open(default_env(), temp_ / "out.safetensors");
    return out.ok() ? out->find("loss")->as<float>()[0] : NAN;
  }
  test::TempDir temp_;
};

TEST_F(EvalTest, AggregatesAsSaid) {
  // token losses: 1 2 3 | -4
  EXPECT_FLOAT_EQ(loss({}), 2.0F / 4);
  EXPECT_FLOAT_EQ(loss({"--set", "loss_agg_mode=token-sum"}), 2);
  EXPECT_FLOAT_EQ(loss({"--set", "loss_agg_mode=seq-mean-token-mean"}), (2.0F - 4) / 2);
  EXPECT_FLOAT_EQ(loss({"--set", "loss_agg_mode=seq-mean-token-sum"}), 1);
  EXPECT_FLOAT_EQ(loss({"--set", "loss_agg_mode=seq-mean-token-sum-norm"}), 2.0F / 3);  // only by the width
  EXPECT_FLOAT_EQ(loss({"--set", "loss_agg_mode=seq-mean-token-sum-norm", "--set", "loss_scale_factor=8"}), 2.0F / 8);
  EXPECT_FLOAT_EQ(
      loss({"--set", "loss_agg_mode=seq-mean-token-sum-norm", "loss_scale_factor=8", "loss_scale_by_rows=true"}),
      2.0F / 16);
  EXPECT_FLOAT_EQ(loss({}, "in.rollout_is_weights"), (6.0F - 8) / 4);
}

TEST_F(EvalTest, WrongInputsAreNamed) {
  EXPECT_THAT(eval(inputs("in.entropi"), {}).err,
              AllOf(HasSubstr("unknown tensor 'in.entropi'"), HasSubstr("did you mean 'entropy'")));
  EXPECT_EQ(eval(inputs("in.entropi"), {}).code, static_cast<int>(ErrorKind::kData));
  EXPECT_THAT(eval(temp_ / "absent", {}).err, HasSubstr("absent"));
  EXPECT_THAT(eval(inputs(), {"--set", "tau=1"}).err, HasSubstr("'plain' has no parameter 'tau'"));
  EXPECT_THAT(eval(inputs(), {"--set", "loss_agg_mode=token-men"}).err, HasSubstr("did you mean 'token-mean'"));
  EXPECT_THAT(eval(inputs(), {"--set", "loss_scale_by_rows=maybe"}).err, HasSubstr("must be true or false"));
  EXPECT_THAT(eval(inputs(), {"--set", "loss_agg_mode=prompt-mean"}).err,
              HasSubstr("needs the tensor 'in.group_index'"));
  EXPECT_THAT(eval(inputs(), {"--set", "novalue"}).err, HasSubstr("is not key=value"));
  const std::vector<float> short_mask = {1, 1};
  const TensorView bad[] = {view_of<float>("in.log_prob", short_mask, {2})};
  ASSERT_OK(write_safetensors_file(default_env(), temp_ / "bad.safetensors", bad));
  EXPECT_THAT(eval(temp_ / "bad.safetensors", {}).err, HasSubstr("has the shape (2), must be (B,T)"));
}

TEST_F(EvalTest, AMaskIsZeroOrOne) {
  for (const auto& [value, text] : {std::pair{0.5F, "0.5"}, std::pair{2.0F, "2"}, std::pair{NAN, "nan"}}) {
    const Ran ran = eval(inputs("", {1, 1, 1, 1, value, 0}), {});
    EXPECT_EQ(ran.code, static_cast<int>(ErrorKind::kData));
    EXPECT_THAT(ran.err, HasSubstr("tensor 'in.response_mask' holds " + std::string(text) + " in row 1, token 1"));
  }
}

TEST_F(EvalTest, RowFlagsAreZeroOrOne) {
  const std::vector<float> rewards = {1, 0}, mask = {1, 1}, valid = {1, NAN};
  const TensorView tensors[] = {view_of<float>("in.token_level_rewards", rewards, {2, 1}),
                                view_of<float>("in.response_mask", mask, {2, 1}),
                                view_of<float>("in.row_valid", valid, {2})};
  ASSERT_OK(write_safetensors_file(default_env(), temp_ / "in.safetensors", tensors));
  const Ran ran =
      mortise_plugin({"eval", "advantage_estimator", "grpo", "--inputs", (temp_ / "in.safetensors").string(),
                      "--outputs", (temp_ / "out.safetensors").string()});
  EXPECT_EQ(ran.code, static_cast<int>(ErrorKind::kData));
  EXPECT_THAT(ran.err, HasSubstr("tensor 'in.row_valid' holds nan in row 1, must be 0 or 1"));
}

// Without groups every row would be compared with itself.
TEST_F(EvalTest, WhatComparesGroupsNeedsThem) {
  const std::vector<float> ones = {1, 1};
  const TensorView tensors[] = {view_of<float>("in.token_level_rewards", ones, {2, 1}),
                                view_of<float>("in.response_mask", ones, {2, 1})};
  ASSERT_OK(write_safetensors_file(default_env(), temp_ / "in.safetensors", tensors));
  const auto run = [&](const std::string& name) {
    return mortise_plugin({"eval", "advantage_estimator", name, "--inputs", (temp_ / "in.safetensors").string(),
                           "--outputs", (temp_ / "out.safetensors").string()});
  };
  EXPECT_THAT(run("grpo").err, HasSubstr("advantage_estimator grpo needs the tensor 'in.group_index'"));
  EXPECT_EQ(run("reinforce_plus_plus").code, 0);
}

TEST_F(EvalTest, ARewardScoresRows) {
  const Path in = temp_.write("rows.jsonl", R"({"prompt":"a","completion":"xyz","finish_reason":"length","answer":3})"
                                            "\n"
                                            R"({"prompt":[{"role":"user","content":"q"}],"completion":"w"})"
                                            "\n\n"
                                            R"({"completion":"v","answer":null})"
                                            "\n");
  const auto run = [&](const std::string& name) {
    return mortise_plugin({"eval", "reward", name, "--plugin-path", test::pack_dir("rude").string(), "--isolation",
                           "none", "--inputs", in.string(), "--outputs", (temp_ / "out.jsonl").string()});
  };
  const Ran ran = run("row_fails");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(temp_.read("out.jsonl"), R"({"reward":0.5,"values":{"length":3.0}})"
                                     "\n"
                                     R"({"reward":null,"error":"cannot parse"})"
                                     "\n"
                                     R"({"reward":null})"
                                     "\n");
  EXPECT_EQ(ran.out, "{\"metrics\":{}}\n");
  temp_.write("rows.jsonl", "{\"completion\":\"x\"}\n{\"prompt\":\"no completion\"}\n");
  EXPECT_THAT(run("row_fails").err, AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("'completion' is missing")));
  EXPECT_EQ(run("row_fails").code, static_cast<int>(ErrorKind::kData));
}

// Rewards of test.faulty on completions; further options behind.
class EvalRewardTest : public testing::Test {
 protected:
  Ran run(const std::string& name, const std::vector<std::string>& rows, const std::vector<std::string>& options = {}) {
    std::string text;
    for (const std::string& row : rows) text += row + "\n";
    std::vector<std::string> args = {"eval",
                                     "reward",
                                     name,
                                     "--plugin-path",
                                     test::pack_dir("faulty").string(),
                                     "--inputs",
                                     temp_.write("rows.jsonl", text).string(),
                                     "--outputs",
                                     (temp_ / "out.jsonl").string()};
    args.insert(args.end(), options.begin(), options.end());
    return mortise_plugin(args);
  }
  std::vector<Json> results() const {
    std::vector<Json> out;
    std::istringstream lines(temp_.read("out.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(parsed(line));
    return out;
  }
  test::TempDir temp_;
};

TEST_F(EvalRewardTest, RunsInWorkersUnlessToldOtherwise) {
  const std::vector<std::string> rows = {R"({"completion":"pid"})"};
  ASSERT_EQ(run("probe", rows).code, 0);
  EXPECT_NE(results()[0]["reward"], ::getpid());
  ASSERT_EQ(run("probe", rows, {"--isolation", "none"}).code, 0);
  EXPECT_EQ(results()[0]["reward"], ::getpid());
  const std::string config = temp_.write("run.toml", "[plugins]\nisolation = \"none\"\n").string();
  ASSERT_EQ(run("probe", rows, {"--config", config}).code, 0);
  EXPECT_EQ(results()[0]["reward"], ::getpid());
  EXPECT_THAT(run("probe", rows, {"--isolation", "maybe"}).err,
              HasSubstr("--isolation takes auto, process, none, not"));
}

TEST_F(EvalRewardTest, ACrashAndAHangCostTheirRows) {
  const Ran ran = run("plain", {R"({"completion":"ab"})", R"({"completion":"crash"})", R"({"completion":"hang"})"},
                      {"--timeout", "15s"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(results()[0]["reward"], 2.0);
  EXPECT_EQ(results()[1]["reward"], Json());
  if (!test::kSanitized) {
    EXPECT_THAT(results()[1]["error"].get<std::string>(), HasSubstr("signal 11"));
  }
  EXPECT_THAT(results()[2]["error"].get<std::string>(), HasSubstr("row_timeout = 3.00 s"));
}

TEST_F(EvalRewardTest, WorkersMayDoWhatIsAllowed) {
  const std::vector<std::string> rows = {R"({"completion":"write"})"};
  const std::string set = "path=" + (temp_ / "file").string();
  ASSERT_EQ(run("probe", rows, {"--set", set}).code, 0);
  EXPECT_EQ(results()[0]["reward"], 0.0);
  ASSERT_EQ(run("probe", rows, {"--set", set, "--allow", "files,programs"}).code, 0);
  EXPECT_EQ(results()[0]["reward"], 1.0);
  EXPECT_THAT(run("probe", rows, {"--allow", "all"}).err, HasSubstr("takes network, files, programs"));
}

TEST_F(EvalRewardTest, OneThatAppliesToNoRowIsToldWithTheColumns) {
  ASSERT_OK(log_init({.console_level = LogLevel::kOff, .file = temp_ / "log.txt", .force_plain = true}));
  const int code = run("probe", {R"({"completion":"?","answer":3,"level":"a","both":[1]})",
                                 R"({"completion":"?","answer":4,"both":{"b":1},"part":0.5})"})
                       .code;
  log_flush();
  ASSERT_OK(log_init({}));
  EXPECT_EQ(code, 0);
  EXPECT_THAT(temp_.read("log.txt"),
              AllOf(HasSubstr("the reward applies to no row"),
                    HasSubstr("Columns: answer (integer), level (text), both (json), part (number)")));
}

TEST_F(EvalRewardTest, RowsOfAGroupNeedNotStandTogether) {
  const auto row = [](const std::string& text, int group) {
    return R"({"completion":")" + text + R"(","group_index":)" + std::to_string(group) + "}";
  };
  ASSERT_OK(log_init({.console_level = LogLevel::kOff, .file = temp_ / "log.txt", .force_plain = true}));
  const int code = run("whole_group", {row("a", 5), row("b", 2), row("c", 5), row("d", 5), row("throw", 2)}).code;
  log_flush();
  ASSERT_OK(log_init({}));
  ASSERT_EQ(code, 0);
  EXPECT_THAT(temp_.read("log.txt"), HasSubstr("failed on 2 of 5 rows; first: row 1: cannot parse (INVALID_ARGUMENT); "
                                               "'error' of each row is in "));
  const std::vector<Json> out = results();
  EXPECT_EQ(out[0]["reward"], 3.0);
  EXPECT_EQ(out[2]["reward"], 3.0);
  EXPECT_EQ(out[3]["reward"], 3.0);
  EXPECT_EQ(out[1]["error"], out[4]["error"]);
}

TEST(ConfigPlacesTest, TheRunsFileSaysWherePacksAre) {
  const test::TempDir temp;
  const Path config = temp.write("run.toml", "[plugins]\npaths = [\"" + test::pack_dir("minimal").string() + "\"]\n");
  EXPECT_THAT(mortise_plugin({"list", "reward", "--config", config.string()}).out, HasSubstr("test.minimal"));
  temp.write("run.toml", "[plugins]\npaths = [\"/nowhere/at/all\"]\n");
  const Ran ran = mortise_plugin({"list", "--config", config.string()});
  EXPECT_EQ(ran.code, static_cast<int>(ErrorKind::kConfig));
  EXPECT_THAT(ran.err, AllOf(HasSubstr("run.toml:2:"), HasSubstr("'/nowhere/at/all' does not exist")));
  EXPECT_THAT(mortise_plugin({"list", "--plugin-path", "/nowhere"}).err,
              HasSubstr("--plugin-path: the folder of packs"));
}

// --- list, describe, help --------------------------------------------------------------------------------------------

TEST(ListTest, TellsWhatIsUsedAndWhatIsNot) {
  const std::vector<std::string> where = {"--plugin-path", test::pack_dir("minimal").string(), "--plugin-path",
                                          test::pack_dir("wrong_abi").string()};
  std::vector<std::string> args = {"list", "reward"};
  args.insert(args.end(), where.begin(), where.end());
  const Ran ran = mortise_plugin(args);
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("reward  one"), HasSubstr("test.minimal"), HasSubstr("1.0.0"),
                             HasSubstr("portable"), HasSubstr(test::pack_path("minimal").string())));
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("not used:"), HasSubstr("built for plugin ABI 7, this program reads ABI 1 and 0")));
  args.emplace_back("--json");
  const Json json = parsed(mortise_plugin(args).out);
  bool found = false;
  for (const Json& plugin : json["plugins"])
    found = found ||
            (plugin["name"] == "one" && plugin["kind"] == "reward" && plugin["sha256"].get<std::string>().size() == 64);
  EXPECT_TRUE(found);
  EXPECT_EQ(json["rejected"][0]["path"], test::pack_path("wrong_abi").string());
}

TEST(DescribeTest, ShowsTheParameterTable) {
  const std::string dir = test::pack_dir("rude").string();
  const Ran ran = mortise_plugin({"describe", "probe", "--plugin-path", dir});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("reward probe: rude"), HasSubstr("slow | fast"), HasSubstr("how much"),
                             HasSubstr("test.rude.so")));
  const Json json = parsed(mortise_plugin({"describe", "needs_values", "--json", "--plugin-path", dir}).out);
  EXPECT_EQ(json["requires"][0], "values");
  EXPECT_EQ(json["kind"], "advantage_estimator");
  EXPECT_THAT(mortise_plugin({"describe", "prob", "--plugin-path", dir}).err, HasSubstr("did you mean 'probe'"));
  EXPECT_EQ(mortise_plugin({"describe", "prob", "--plugin-path", dir}).code, static_cast<int>(ErrorKind::kPlugin));
}

TEST(UsageTest, EveryCommandHasHelpAndRefusesNonsense) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--help"}, {"list", "--help"}, {"describe", "-h"}, {"eval", "--help"}}) {
    const Ran ran = mortise_plugin(args);
    EXPECT_EQ(ran.code, 0);
    EXPECT_THAT(ran.out, HasSubstr("usage: mortise plugin"));
  }
  const int config = static_cast<int>(ErrorKind::kConfig);
  EXPECT_EQ(mortise_plugin({}).code, config);
  EXPECT_THAT(mortise_plugin({"lsit"}).err, HasSubstr("did you mean 'list'"));
  EXPECT_THAT(mortise_plugin({"list", "rewards"}).err,
              AllOf(HasSubstr("there is no kind 'rewards'"), HasSubstr("did you mean 'reward'")));
  EXPECT_EQ(mortise_plugin({"list", "--jsn"}).code, config);
  EXPECT_EQ(mortise_plugin({"eval", "policy_loss"}).code, config);
  EXPECT_THAT(mortise_plugin({"eval", "rollout_backend", "echo", "--inputs", "a", "--outputs", "b"}).err,
              HasSubstr("mortise generate"));
}

}  // namespace
}  // namespace mortise
