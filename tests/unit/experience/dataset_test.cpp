// Reading training files: the order of rows, overlong prompts, bad rows, any number of threads.
#include "experience/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "char_folder.h"

namespace mortise {
namespace {

class DatasetTest : public ::testing::Test {
 protected:
  Result<Dataset> load(const std::vector<std::string>& files, bool filter = false, int64_t max_samples = -1) {
    PromptEncoderOptions options;
    options.max_prompt_length = 4;
    encoder_.emplace(tokenizer_, ChatTemplates(), options);
    DatasetOptions dataset;
    dataset.files = files;
    dataset.filter_overlong_prompts = filter;
    dataset.max_samples = max_samples;
    dataset.vocab_size = 100;
    dataset.key = "data.train_files";
    return Dataset::load(default_env(), *encoder_, dataset);
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  std::optional<PromptEncoder> encoder_;
};

TEST_F(DatasetTest, KeepsTheOrderOfFilesAndLines) {
  const std::string a = folder_.write("a.jsonl", "{\"prompt\": \"1\"}\n\n{\"prompt\": \"2\"}\n");
  const std::string b = folder_.write("b.jsonl", "{\"prompt\": \"3\"}\n");
  const Dataset dataset = load({a, b}).value();
  ASSERT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset[0].text, "1");
  EXPECT_EQ(dataset[2].text, "3");
  EXPECT_EQ(dataset.where(1), a + ":3");
  EXPECT_EQ(load({a, b}, false, 2)->size(), 2);
}

TEST_F(DatasetTest, FiltersOrRefusesOverlongPrompts) {
  const std::string a = folder_.write("a.jsonl", "{\"prompt\": \"12345\"}\n{\"prompt\": \"2\"}\n");
  EXPECT_NE(load({a}).error().to_string().find(a + ":1"), std::string::npos);
  const Dataset dataset = load({a}, true).value();
  EXPECT_EQ(dataset.size(), 1);
  EXPECT_EQ(dataset.num_filtered(), 1);
  const std::string long_only = folder_.write("long.jsonl", "{\"prompt\": \"12345\"}\n");
  EXPECT_NE(
      load({long_only}, true).error().to_string().find("no row is left: the data set has only rows whose prompts"),
      std::string::npos);
  EXPECT_EQ(dataset.where(0), a + ":2");
}

TEST_F(DatasetTest, BadFilesEndInTheirPlace) {
  EXPECT_NE(load({"/nowhere/x.jsonl"}).error().to_string().find("does not exist"), std::string::npos);
  const std::string bad = folder_.write("bad.jsonl", "{\"prompt\": \"1\"}\n{\"prompt\": }\n");
  EXPECT_NE(load({bad}).error().to_string().find(bad + ":2"), std::string::npos);
  EXPECT_NE(load({folder_.write("empty.jsonl", "")}).error().to_string().find("no rows"), std::string::npos);
}

// "asnwer" remains a column. A warning tells who reads "answer", once per file, in whichever thread the row is read
// first.
TEST_F(DatasetTest, TellsOfKeysThatAreNearlyThoseThatAreRead) {
  std::string rows = R"({"prompt": "1", "answer": 1, "answers": 3, "tool": 4})"
                     "\n";
  for (int i = 0; i < 200; ++i)
    rows += R"({"prompt": "1", "asnwer": 1, "level": 2})"
            "\n";
  rows += R"({"prompt": "1", "Answer": 1, "asnwer": 1})"
          "\n"
          R"({"prompt": "1", "answer": null, "anwser": 2})"
          "\n";
  const std::string a = folder_.write("a.jsonl", rows);
  const std::string b = folder_.write("b.jsonl", R"({"prompt": "2", "tool": 5, "gd": 6})"
                                                 "\n");
  DatasetOptions options;
  options.files = {a, b};
  options.num_threads = 3;
  options.read_keys = {"answer", "tools", "gt"};
  const PromptEncoder encoder(tokenizer_, ChatTemplates(), {});
  testing::internal::CaptureStderr();
  const Result<Dataset> dataset = Dataset::load(default_env(), encoder, options);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(dataset.ok()) << dataset.error().to_string();
  EXPECT_EQ((*dataset)[1].columns["asnwer"], 1);
  const auto says = [&](const std::string& text) { return log.find(text) != std::string::npos; };
  EXPECT_TRUE(says(a + ":2: the row has 'asnwer' and no 'answer' (as have 200 more rows of the file); did you mean "
                       "'answer'?"))
      << log;
  EXPECT_TRUE(says(a + ":202: the row has 'Answer' and no 'answer'; did you mean 'answer'?")) << log;
  // If no row has the configured name, that name may itself be misspelt. No advice then suggests to adopt it.
  const std::string neither =
      ":1: the row has 'tool' and no 'tools', and no row has 'tools'; correct the rows, or the setting that names it";
  EXPECT_TRUE(says(a + neither)) << log;
  EXPECT_TRUE(says(b + neither)) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 4) << "nothing else: " << log;
}

TEST_F(DatasetTest, EveryFormatHasTheSameRows) {
  const std::string jsonl = "{\"prompt\": \"1\", \"a\": \"x\"}\n{\"prompt\": \"2\", \"a\": null}\n";
  const std::string a = folder_.write("a.jsonl", jsonl);
  const std::string b = folder_.write("b.json", R"([{"prompt": "3", "a": "y"},
 {"prompt": "4", "a": "z"}])");
  const std::string c = folder_.write("c.csv", "prompt,a\n5,x\n6,\n");
  const Dataset dataset = load({a, b, c}).value();
  ASSERT_EQ(dataset.size(), 6);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dataset[i].text, std::to_string(i + 1));
  EXPECT_EQ(dataset[5].columns["a"], nullptr);
  EXPECT_EQ(dataset.where(3), b + ":2");
  EXPECT_EQ(dataset.where(4), c + ":2");
  const std::string pattern = a.substr(0, a.size() - 7) + "[a-c].*";
  EXPECT_EQ(load({pattern})->digest(), dataset.digest());
}

TEST_F(DatasetTest, BadRowsCanBeSkippedAndAreListed) {
  std::string text = "{\"prompt\": \"1\"}\nno row\n{\"prompt\": \"12345\"}\n{\"prompt\": \"2\"}\n{\"answer\": 3}\n";
  DatasetOptions options;
  options.files = {folder_.write("a.jsonl", text)};
  options.skip_bad_rows = true;
  PromptEncoderOptions limit;
  limit.max_prompt_length = 4;
  const PromptEncoder encoder(tokenizer_, ChatTemplates(), limit);
  const Dataset dataset = Dataset::load(default_env(), encoder, options).value();
  ASSERT_EQ(dataset.size(), 2);
  EXPECT_EQ(dataset[1].text, "2");
  EXPECT_EQ(dataset.rejects().num, 3);
  ASSERT_EQ(dataset.rejects().kept.size(), 3u);
  EXPECT_TRUE(dataset.rejects().kept[0].where.starts_with(options.files[0] + ":2:"));
  EXPECT_EQ(dataset.rejects().kept[1].where, options.files[0] + ":3");
  options.files = {folder_.write("b.jsonl", "no row\n")};
  EXPECT_NE(Dataset::load(default_env(), encoder, options).error().to_string().find("only rows that cannot be used"),
            std::string::npos);
}

TEST_F(DatasetTest, TheSameForAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 700; ++i)
    text += "{\"prompt\": \"" + std::to_string(i) + "+1=\", \"k\": " + std::to_string(i) + "}\n";
  DatasetOptions options;
  options.files = {folder_.write("many.jsonl", text)};
  options.filter_overlong_prompts = true;
  PromptEncoderOptions limit;
  limit.max_prompt_length = 5;  // up to 99
  const PromptEncoder encoder(tokenizer_, ChatTemplates(), limit);
  std::vector<std::vector<int64_t>> first;
  for (const int threads : {1, 2, 3, 8}) {
    options.num_threads = threads;
    const Dataset dataset = Dataset::load(default_env(), encoder, options).value();
    EXPECT_EQ(dataset.num_filtered(), 600);
    std::vector<std::vector<int64_t>> rows;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      rows.push_back(dataset[i].token_ids);
      EXPECT_EQ(dataset[i].columns["k"], i);
      EXPECT_EQ(dataset[i].dataset_row, i);
    }
    if (threads == 1) first = rows;
    EXPECT_EQ(rows, first) << threads;
  }
}

TEST_F(DatasetTest, TheEarliestBadRowIsNamedWhateverTheThreads) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i == 300 || i == 900 ? "{\"prompt\": 5}\n" : "{\"prompt\": \"1\"}\n";
  const std::string path = folder_.write("many.jsonl", text);
  for (int i = 0; i < 5; ++i) EXPECT_NE(load({path}).error().to_string().find(path + ":301:"), std::string::npos);
}

}  // namespace
}  // namespace mortise
