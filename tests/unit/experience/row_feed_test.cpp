// The order of rows: weights, curricula, and rows that are streamed through a shuffle buffer; a resume at every place.
#include "experience/data/row_feed.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "char_folder.h"
#include "experience/data/prompt_source.h"
#include "experience/data/shuffled_rows.h"
#include "support/counting_new.h"
#include "support/this_build.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rows first, first + 1 ..., some of them left out or bad.
std::string numbered_rows(int first, int num) {
  std::string text;
  for (int i = first; i < first + num; ++i)
    text += "{\"prompt\": \"" + std::to_string(i) + "\", \"level\": " + std::to_string(i * 7 % 5) + "}\n";
  return text;
}

class RowFeedTest : public ::testing::Test {
 protected:
  Dataset data_of(std::vector<std::string> files, bool streams, bool skips_bad_rows = false) {
    PromptEncoderOptions limit;
    limit.max_prompt_length = 3;  // 1000 and more are left out
    encoder_.emplace(tokenizer_, ChatTemplates(), limit);
    DatasetOptions options;
    options.files = std::move(files);
    options.filter_overlong_prompts = true;
    options.skip_bad_rows = skips_bad_rows;
    options.key = "data.train_files";
    options.num_threads = 2;
    const RowEncoder encode = prompt_row_encoder(*encoder_, options);
    return (streams ? Dataset::scan(default_env(), encode, options) : Dataset::load(default_env(), encode, options))
        .value();
  }
  static std::vector<std::string> batch_of(PromptSource& source) {
    const auto batch = source.next(1);
    EXPECT_TRUE(batch.ok()) << error_of(batch);
    std::vector<std::string> out;
    for (const Prompt& prompt : batch.ok() ? batch->prompts : std::vector<Prompt>()) out.push_back(prompt.text);
    return out;
  }
  static std::vector<std::string> rows_of(PromptSource& source, int num_batches) {
    std::vector<std::string> out;
    for (int i = 0; i < num_batches; ++i) {
      for (std::string& row : batch_of(source)) out.push_back(std::move(row));
    }
    return out;
  }
  // `to` continues where `from` is, as after a resume.
  static void carry_state(PromptSource& from, PromptSource& to) {
    StatefulRegistry saved, loaded;
    ASSERT_TRUE(saved.add(from).ok());
    ASSERT_TRUE(loaded.add(to).ok());
    ASSERT_TRUE(loaded.load(saved.save().value(), "test").ok());
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  std::optional<PromptEncoder> encoder_;
};

TEST(RowSchedule, EachSourceIsWithinOneRowOfItsShare) {
  auto schedule = RowSchedule::create({{700, 7}, {1000, 2}, {1000, 1}}, StoppingStrategy::kFirstExhausted).value();
  EXPECT_EQ(schedule.rows_per_epoch(), 1000);
  for (int64_t row = 1; row <= 1000; ++row) {
    schedule.next();
    EXPECT_NEAR(static_cast<double>(schedule.counts()[0]), 0.7 * static_cast<double>(row), 1.0);
    EXPECT_NEAR(static_cast<double>(schedule.counts()[1]), 0.2 * static_cast<double>(row), 1.0);
    EXPECT_NEAR(static_cast<double>(schedule.counts()[2]), 0.1 * static_cast<double>(row), 1.0);
  }
  auto again = RowSchedule::create({{700, 7}, {1000, 2}, {1000, 1}}, StoppingStrategy::kFirstExhausted).value();
  again.go_to(500);
  schedule.go_to(0);
  for (int i = 0; i < 500; ++i) schedule.next();
  for (int i = 0; i < 500; ++i) EXPECT_EQ(schedule.next(), again.next());
  const auto all = RowSchedule::create({{10, 1}, {30, 1}}, StoppingStrategy::kAllExhausted).value();
  EXPECT_EQ(all.rows_per_epoch(), 60);
  EXPECT_THAT(error_of(RowSchedule::create({{10, 1}, {0, 1}}, StoppingStrategy::kAllExhausted)),
              HasSubstr("entry 2 of data.train_files has no rows"));
  EXPECT_THAT(error_of(RowSchedule::create({{1000, 1e-5}, {1000, 1e5}}, StoppingStrategy::kAllExhausted)),
              HasSubstr("more than 10^10 rows"));
}

TEST_F(RowFeedTest, WeightsMixTheEntries) {
  const Dataset data =
      data_of({folder_.write("a.jsonl", numbered_rows(0, 6)), folder_.write("b.jsonl", numbered_rows(100, 50))}, false);
  PromptSourceOptions options{4, {false, 0, {3, 1}}};
  auto source = PromptSource::create(data, options).value();
  EXPECT_EQ(source.rows_per_epoch(), 8);
  EXPECT_THAT(batch_of(source), ElementsAre("0", "1", "100", "2"));
  EXPECT_THAT(batch_of(source), ElementsAre("3", "4", "101", "5"));
  options.order.stopping = StoppingStrategy::kAllExhausted;
  options.order.shuffle = true;
  auto whole = PromptSource::create(data, options).value();
  EXPECT_EQ(whole.rows_per_epoch(), 199) << "until the last of 50 rows, of which one in four is";
  const std::vector<std::string> rows = rows_of(whole, 49);
  for (size_t begin = 0; begin + 8 <= rows.size(); begin += 8) {  // two batches hold each of the six rows of a once
    const std::set<std::string> seen(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                     rows.begin() + static_cast<std::ptrdiff_t>(begin) + 8);
    EXPECT_EQ(seen.size(), 8u);
  }
}

TEST_F(RowFeedTest, CurriculaSortAndEqualLevelsAreShuffled) {
  const Dataset data = data_of({folder_.write("a.jsonl", numbered_rows(0, 20))}, false);
  PromptSourceOptions options{20, {true, 3}};
  options.order.curriculum_key = "level";
  auto source = PromptSource::create(data, options).value();
  const auto levels = [](const std::vector<std::string>& rows) {
    std::vector<int> out;
    for (const std::string& row : rows) out.push_back(std::stoi(row) * 7 % 5);
    return out;
  };
  const std::vector<std::string> first = batch_of(source), second = batch_of(source);
  EXPECT_TRUE(std::ranges::is_sorted(levels(first)));
  EXPECT_TRUE(std::ranges::is_sorted(levels(second)));
  EXPECT_NE(first, second);
  options.order.curriculum_order = CurriculumOrder::kDescending;
  auto falling = PromptSource::create(data, options).value();
  EXPECT_TRUE(std::ranges::is_sorted(levels(batch_of(falling)), std::greater<>()));
  options.order.curriculum_key = "none";
  EXPECT_THAT(error_of(PromptSource::create(data, options)),
              AllOf(HasSubstr("a.jsonl:1: data.curriculum_key is 'none'"), HasSubstr("nothing")));
}

// Row i of 12 has the reward i % 4; rows 10 and 11 never get one.
TEST_F(RowFeedTest, ACurriculumByRewardSortsByTheMeansBeforeTheEpoch) {
  const Dataset data = data_of({folder_.write("a.jsonl", numbered_rows(0, 12))}, false);
  PromptSourceOptions options{4, {true, 3}};
  options.order.curriculum_by_reward = true;
  options.order.curriculum_order = CurriculumOrder::kDescending;
  const auto take = [](PromptSource& source) {
    const PromptBatch batch = source.next(1).value();
    std::vector<double> rewards;  // two completions each, whose mean counts
    for (const Prompt& prompt : batch.prompts) {
      const int row = std::stoi(prompt.text);
      const double reward = row < 10 ? row % 4 : std::nan("");
      rewards.insert(rewards.end(), {reward + 1, reward - 1});
    }
    source.note_rewards(batch, rewards);
    std::vector<int> rows;
    for (const Prompt& prompt : batch.prompts) rows.push_back(std::stoi(prompt.text));
    return rows;
  };
  auto source = PromptSource::create(data, options).value();
  PromptSourceOptions shuffled = options;
  shuffled.order.curriculum_by_reward = false;
  auto plain = PromptSource::create(data, shuffled).value();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(take(source), take(plain)) << "no reward is known in the first epoch";
  std::vector<int> second;
  for (int stop = 0; stop < 3; ++stop) {
    auto resumed = PromptSource::create(data, options).value();
    carry_state(source, resumed);
    const std::vector<int> rows = take(source);
    EXPECT_EQ(take(resumed), rows) << stop;
    second.insert(second.end(), rows.begin(), rows.end());
  }
  const auto level = [](int row) { return row < 10 ? row % 4 : -1; };
  EXPECT_TRUE(std::ranges::is_sorted(second, std::greater<>(), level)) << testing::PrintToString(second);
  EXPECT_EQ(std::set<int>(second.begin(), second.end()).size(), 12u);
}

TEST_F(RowFeedTest, StreamsInTheOrderOfTheFilesWithoutShuffling) {
  const std::vector<std::string> files = {folder_.write("a.jsonl", numbered_rows(0, 5)),
                                          folder_.write("b.csv", "prompt,level\n5,1\n1234,2\n6,1\n")};
  const Dataset data = data_of(files, true), held = data_of(files, false);
  EXPECT_EQ(data.size(), 7);
  EXPECT_EQ(data.num_filtered(), 1);
  EXPECT_EQ(data.digest(), held.digest());
  auto source = PromptSource::create(data, {7, {false, 0}}).value();
  auto same = PromptSource::create(held, {7, {false, 0}}).value();
  EXPECT_THAT(batch_of(source), ElementsAre("0", "1", "2", "3", "4", "5", "6"));
  EXPECT_EQ(batch_of(source), batch_of(same));
}

TEST_F(RowFeedTest, AShuffledStreamHasEveryRowOncePerEpoch) {
  const Dataset data = data_of(
      {folder_.write("a.jsonl", numbered_rows(0, 90)), folder_.write("b.jsonl", "{\"prompt\": \"90\"}\n")}, true);
  RowOrder order{true, 4};
  order.shuffle_buffer_size = 16;
  auto source = PromptSource::create(data, {91, order}).value();
  const std::vector<std::string> first = batch_of(source), second = batch_of(source);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 91u);
  EXPECT_EQ(std::set<std::string>(second.begin(), second.end()).size(), 91u);
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::ranges::is_sorted(first, {}, [](const std::string& row) { return std::stoi(row); }));
}

// Rows that are left out and rejects lie among the others; the batch size does not divide the epoch.
TEST_F(RowFeedTest, AStreamResumesAtEveryPlace) {
  const std::string text = numbered_rows(0, 9) + "{\"prompt\": \"12345\"}\n" + numbered_rows(9, 6) + "no row\n" +
                           numbered_rows(15, 8) + "{\"prompt\": \"12345\"}\n";
  const std::vector<std::string> files = {folder_.write("a.jsonl", text),
                                          folder_.write("b.jsonl", numbered_rows(30, 11))};
  const Dataset data = data_of(files, true, true);
  EXPECT_EQ(data.size(), 34);
  EXPECT_EQ(data.rejects().num, 1);
  for (const bool weighted : {false, true}) {
    RowOrder order{true, 8};
    order.shuffle_buffer_size = 7;
    if (weighted) order.weights = {2, 1};
    if (weighted) order.stopping = StoppingStrategy::kAllExhausted;
    const PromptSourceOptions options{5, order};
    for (int stop = 0; stop < 16; ++stop) {
      auto straight = PromptSource::create(data, options).value();
      for (int i = 0; i < stop; ++i) batch_of(straight);
      auto resumed = PromptSource::create(data, options).value();
      carry_state(straight, resumed);
      EXPECT_EQ(rows_of(straight, 9), rows_of(resumed, 9)) << weighted << " " << stop;
    }
  }
}

TEST_F(RowFeedTest, AFileThatChangesUnderAStreamIsAnError) {
  const std::string path = folder_.write("a.jsonl", numbered_rows(0, 4));
  const Dataset data = data_of({path}, true);
  auto source = PromptSource::create(data, {4, {true, 0}}).value();
  EXPECT_EQ(batch_of(source).size(), 4u);
  EXPECT_EQ(folder_.write("a.jsonl", numbered_rows(0, 5)), path);
  EXPECT_THAT(error_of(source.next(2)), HasSubstr("the data file changed while the run reads it"));
}

TEST_F(RowFeedTest, TheCensusOfAStreamIsThatOfTheRows) {
  const std::vector<std::string> files = {folder_.write(
      "a.jsonl", numbered_rows(0, 3) + "{\"prompt\": \"7\", \"level\": \"x\", \"meta\": {\"gold\": 1}}\n")};
  PromptEncoderOptions none;
  const PromptEncoder encoder(tokenizer_, ChatTemplates(), none);
  DatasetOptions options;
  options.files = files;
  options.watched_columns = {"meta.gold", "meta.silver", "level"};
  const Dataset data = Dataset::scan(default_env(), prompt_row_encoder(encoder, options), options).value();
  EXPECT_TRUE(data.has_value("meta.gold"));
  EXPECT_FALSE(data.has_value("meta.silver"));
  EXPECT_THAT(data.column_names(), ElementsAre("level", "meta"));
  const auto types = data.streamed().census.decide([&](int64_t row) { return data.where(row); });
  EXPECT_THAT(error_of(types), HasSubstr("holds an integer in " + files[0] + ":1 and text in " + files[0] + ":4"));
}

// Counted is what the code holds. The process may hold more: each thread has an arena of the allocator, and which thread
// encodes which rows depends on the machine.
TEST_F(RowFeedTest, TheMemoryOfAStreamDoesNotDependOnTheNumberOfRows) {
  if (test::kSanitized) GTEST_SKIP() << "the release build counts the bytes of 60 MB of rows";
  const std::string padding(2000, 'x');
  const auto most_bytes = [&](int num_rows) {
    const std::string path = folder_.write("rows.jsonl", "");
    {
      std::ofstream out(path);
      for (int i = 0; i < num_rows; ++i) out << R"({"prompt": ")" << i % 100 << R"(", "text": ")" << padding << "\"}\n";
    }
    const int64_t before = CountingNew::bytes();
    CountingNew::reset_peak();
    const Dataset data = data_of({path}, true);
    RowOrder order{true, 1};
    order.shuffle_buffer_size = 100;
    auto source = PromptSource::create(data, {50, order}).value();
    for (int64_t i = 0; i < source.batches_per_epoch(); ++i) batch_of(source);
    return CountingNew::peak() - before;
  };
  const int64_t of_few = most_bytes(10'000), of_many = most_bytes(20'000);  // 20 and 40 MB
  EXPECT_GT(of_few, 8192 * 2000) << "a piece of the scan is counted";
  EXPECT_LT(of_many, of_few + (4 << 20));
}

}  // namespace
}  // namespace mortise
