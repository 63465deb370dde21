// Batches of prompts over epochs, and a resume at every position.
#include "experience/data/prompt_source.h"

#include <gtest/gtest.h>

#include <set>

#include "char_folder.h"

namespace mortise {
namespace {

class PromptSourceTest : public ::testing::Test {
 protected:
  PromptSourceTest() {
    std::string text;
    for (int i = 0; i < 7; ++i) text += "{\"prompt\": \"" + std::to_string(i) + "\"}\n";
    encoder_.emplace(tokenizer_, ChatTemplates(), PromptEncoderOptions{});
    DatasetOptions options;
    options.files = {folder_.write("d.jsonl", text)};
    dataset_.emplace(Dataset::load(default_env(), *encoder_, options).value());
  }
  static std::string texts(const PromptBatch& batch) {
    std::string out;
    for (const Prompt& p : batch.prompts) out += p.text;
    return out;
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  std::optional<PromptEncoder> encoder_;
  std::optional<Dataset> dataset_;
};

TEST_F(PromptSourceTest, DropsTheIncompleteBatchAndStartsAgain) {
  auto source = PromptSource::create(*dataset_, {3, {false, 0}}).value();
  EXPECT_EQ(texts(source.next(1).value()), "012");
  EXPECT_EQ(texts(source.next(2).value()), "345");
  const PromptBatch third = source.next(3).value();
  EXPECT_EQ(texts(third), "012");
  EXPECT_EQ(third.epoch, 1);
  EXPECT_EQ(third.step, 3);
}

TEST_F(PromptSourceTest, EveryEpochHasItsOwnOrderOfTheSameRows) {
  auto source = PromptSource::create(*dataset_, {7, {true, 5}}).value();
  const std::string first = texts(source.next(1).value()), second = texts(source.next(2).value());
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<char>(first.begin(), first.end()), std::set<char>(second.begin(), second.end()));
  auto other = PromptSource::create(*dataset_, {7, {true, 6}}).value();
  EXPECT_NE(texts(other.next(1).value()), first);
}

TEST_F(PromptSourceTest, ResumesAtEveryPosition) {
  for (int stop = 0; stop < 6; ++stop) {
    auto straight = PromptSource::create(*dataset_, {2, {true, 9}}).value();
    for (int i = 0; i < stop; ++i) ASSERT_TRUE(straight.next(i + 1).ok());
    StatefulRegistry saved, loaded;
    ASSERT_TRUE(saved.add(straight).ok());
    const StateSnapshot snapshot = saved.save().value();
    auto resumed = PromptSource::create(*dataset_, {2, {true, 9}}).value();
    ASSERT_TRUE(loaded.add(resumed).ok());
    ASSERT_TRUE(loaded.load(snapshot, "test").ok());
    for (int i = stop; i < stop + 5; ++i)
      EXPECT_EQ(texts(straight.next(i + 1).value()), texts(resumed.next(i + 1).value())) << stop << " " << i;
  }
}

TEST_F(PromptSourceTest, RefusesAPlaceBehindTheEndOfAnEpoch) {
  auto small = PromptSource::create(*dataset_, {2, {true, 9}}).value();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(small.next(i + 1).ok());
  StatefulRegistry saved, loaded;
  ASSERT_TRUE(saved.add(small).ok());
  const StateSnapshot snapshot = saved.save().value();
  auto large = PromptSource::create(*dataset_, {3, {true, 9}}).value();
  ASSERT_TRUE(loaded.add(large).ok());
  const Result<> refused = loaded.load(snapshot, "test");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().to_string().find("after batch 3 of its epoch, but an epoch now has only 2"),
            std::string::npos)
      << refused.error().to_string();
}

// A file was edited between a stop and a resume: it has as many rows, but one differs.
TEST_F(PromptSourceTest, AsksBeforeItGoesOnWithOtherRows) {
  auto source = PromptSource::create(*dataset_, {2, {true, 9}}).value();
  StatefulRegistry saved;
  ASSERT_TRUE(saved.add(source).ok());
  const StateSnapshot snapshot = saved.save().value();
  const auto resume = [&](const std::string& last, bool takes_changes) -> Result<> {
    std::string text;
    for (int i = 0; i < 6; ++i) text += "{\"prompt\": \"" + std::to_string(i) + "\"}\n\n";
    DatasetOptions options;
    options.files = {folder_.write("e.jsonl", text + last)};
    const Dataset other = Dataset::load(default_env(), *encoder_, options).value();
    auto resumed = PromptSource::create(other, {2, {true, 9}}).value();
    resumed.takes_changes = takes_changes;
    StatefulRegistry loaded;
    TRY(loaded.add(resumed));
    return loaded.load(snapshot, "test");
  };
  EXPECT_TRUE(resume("{\"prompt\": \"6\"}", false).ok());  // blank lines and another name of the file are no change
  for (const char* last : {"{\"prompt\": \"7\"}\n", "{\"prompt\": \"6\", \"answer\": 1}\n"}) {
    const Result<> refused = resume(last, false);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().to_string().find("the training rows differ from those of the checkpoint"),
              std::string::npos);
    EXPECT_TRUE(resume(last, true).ok());
  }
}

TEST_F(PromptSourceTest, RefusesADataSetSmallerThanABatch) {
  const auto refused = [&](PromptSourceOptions options) {
    return PromptSource::create(*dataset_, options).error().to_string();
  };
  EXPECT_EQ(refused({8, {true, 0}}),
            "data.train_files: the training data has 7 prompts, fewer than data.train_batch_size = 8; lower "
            "data.train_batch_size or add data");
  EXPECT_NE(refused({8, {true, 0}, "sft.train_batch_size"}).find("fewer than sft.train_batch_size = 8; lower sft."),
            std::string::npos);
}

}  // namespace
}  // namespace mortise
