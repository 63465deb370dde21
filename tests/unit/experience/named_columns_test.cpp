// Columns that rewards read by a name of the config: which parameters name them, and what no row has.
#include "experience/reward/named_columns.h"

#include <gmock/gmock.h>

#include "char_folder.h"

namespace mortise {
namespace {

ParamInfo text_param(std::string name, std::optional<std::string> default_text, ParamRole role) {
  return {std::move(name), ParamType::kText, std::move(default_text), "data column", std::nullopt, {}, role};
}

PluginInfo reward() {
  PluginInfo info;
  info.name = "match";
  info.params = {text_param("column", "answer", ParamRole::kColumn),
                 text_param("level", "", ParamRole::kColumn),
                 text_param("must", std::nullopt, ParamRole::kColumn),
                 text_param("mode", "column", ParamRole::kPlain),
                 text_param("file", "column", ParamRole::kFile),
                 {"columns", ParamType::kI64, "3", "column count", std::nullopt, {}}};
  return info;
}

std::vector<std::string> paths_of(const Json& params) {
  std::vector<std::string> paths;
  for (const NamedColumn& column : named_columns(reward(), params)) paths.push_back(column.param + "=" + column.path);
  return paths;
}

TEST(NamedColumns, AreTheParametersWithThatRole) {
  EXPECT_THAT(paths_of(Json::object()), testing::ElementsAre("column=answer"));
  EXPECT_THAT(paths_of({{"column", ""}, {"level", "a.b"}, {"must", "m"}, {"mode", "x"}}),
              testing::ElementsAre("level=a.b", "must=m"));
  EXPECT_EQ((NamedColumn{"column", "reward_model.ground_truth"}.row_key()), "reward_model");
}

TEST(NamedColumns, OneRowWithAValueIsEnough) {
  const test::CharFolder folder;
  const Tokenizer tokenizer = folder.tokenizer();
  const PromptEncoder encoder(tokenizer, ChatTemplates(), {});
  DatasetOptions options;
  options.files = {folder.write("rows.jsonl",
                                R"({"prompt": "1", "asnwer": 1, "empty": null, "meta": {"gold": {"x": 2}}, "text": "{}"}
{"prompt": "2", "late": 0, "a.b": false, "a": {"b": null}, "meta": null}
)")};
  const Dataset data = Dataset::load(default_env(), encoder, options).value();
  const auto check = [&](const std::string& path) {
    return check_named_column({"column", path}, reward(), data, "data.train_files");
  };
  for (const char* path : {"asnwer", "late", "meta", "meta.gold", "meta.gold.x", "a.b", "text"})
    EXPECT_TRUE(check(path).ok()) << path;
  for (const char* path : {"answer", "empty", "meta.gold.y", "meta.gold.x.z", "text.x", "prompt", ".", "meta."})
    EXPECT_FALSE(check(path).ok()) << path;
  const Error error = check("answer").error();
  EXPECT_EQ(error.kind, ErrorKind::kData);
  EXPECT_EQ(
      error.to_string(),
      "the reward 'match' reads the data column 'answer' (column), but no row of data.train_files has a value there; "
      "did you mean 'asnwer'? Otherwise set 'column' to a column that exists, or remove the reward");
  EXPECT_EQ(
      check("empty").error().to_string(),
      "the reward 'match' reads the data column 'empty' (column), but all its values in data.train_files are null; "
      "set 'column' to a column with values, or remove the reward");
  EXPECT_THAT(check("zzzzzz").error().next,
              testing::StartsWith("the rows have asnwer, empty, meta, text, late, a.b, a;"));
}

}  // namespace
}  // namespace mortise
