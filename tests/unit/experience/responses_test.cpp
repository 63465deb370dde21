#include "experience/data/responses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "char_folder.h"

namespace mortise {
namespace {

using testing::HasSubstr;

class ResponsesTest : public ::testing::Test {
 protected:
  Result<std::vector<std::vector<int64_t>>> encode(const std::string& rows, int64_t max_length = 4) {
    path_ = folder_.write("sft.jsonl", rows);
    DatasetOptions options;
    options.files = {path_};
    encoder_.emplace(tokenizer_, std::nullopt, PromptEncoderOptions{});
    dataset_.emplace(Dataset::load(default_env(), *encoder_, options).value());
    return encode_responses(*dataset_, tokenizer_, {"response", tokenizer_.eos_id(), max_length, vocab_size_});
  }
  std::string error(const std::string& rows) {
    const auto result = encode(rows);
    return result.ok() ? "ok" : result.error().to_string();
  }
  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  std::optional<PromptEncoder> encoder_;
  std::optional<Dataset> dataset_;
  std::string path_;
  int64_t vocab_size_ = 100;
};

TEST_F(ResponsesTest, EndWithTheEndToken) {
  const auto ids =
      encode("{\"prompt\": \"1\", \"response\": \"12\"}\n{\"prompt\": \"1\", \"response\": \"\"}\n").value();
  ASSERT_EQ(ids.size(), 2U);
  std::vector<int64_t> want = tokenizer_.encode("12", false).value();
  want.push_back(*tokenizer_.eos_id());
  EXPECT_EQ(ids[0], want);
  EXPECT_EQ(ids[1], std::vector<int64_t>{*tokenizer_.eos_id()});
}

TEST_F(ResponsesTest, EveryRowIsLookedAtAndTheFirstBadOneNamed) {
  std::string rows;
  for (int i = 0; i < 500; ++i)
    rows += i == 250 || i == 480 ? "{\"prompt\": \"1\"}\n" : "{\"prompt\": \"1\", \"response\": \"2\"}\n";
  for (int i = 0; i < 5; ++i) {
    const std::string text = error(rows);
    EXPECT_THAT(text, testing::StartsWith(path_ + ":251: the row has no text column 'response' (2 of the rows"));
    EXPECT_THAT(text, HasSubstr("data.response_key"));
  }
}

TEST_F(ResponsesTest, RefusesWhatCannotBeLearnt) {
  const std::string good = "{\"prompt\": \"1\", \"response\": \"123\"}\n";
  EXPECT_EQ(error(good), "ok");  // four tokens with its end
  EXPECT_THAT(
      error(good + "{\"prompt\": \"1\", \"response\": \"1234\"}\n"),
      HasSubstr(path_ + ":2: the completion has 5 tokens with its end, more than data.max_response_length = 4"));
  EXPECT_THAT(error(good + "{\"prompt\": \"1\", \"response\": 7}\n"), HasSubstr(path_ + ":2: the row has no text"));
  vocab_size_ = 3;
  EXPECT_THAT(error(good), HasSubstr("outside the model's vocabulary of 3"));
}

}  // namespace
}  // namespace mortise
