// The reward `reward_model` over a host extension made for the test: what it asks for, and what it makes of the scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mortise/ext/score_model.h"
#include "reward_call.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

struct Seen {
  std::string folder, chat_template;
  int64_t max_length = 0, batch_size = 0;
  int32_t truncation = 0, plain_text = 0;
  std::vector<std::string> messages, tools;
};

// Scores a row with the length of its completion less 2; one of a single character fails.
struct Scorer {
  inline static Seen seen;
  inline static int num_open = 0;
  inline static int32_t status = MORTISE_OK;

  static int32_t open(const mortise_host* host, mortise_call* call, const mortise_score_model_options* options,
                      void** model) noexcept {
    seen = {str(options->folder),
            str(options->chat_template),
            options->max_length,
            options->batch_size,
            options->truncation,
            options->plain_text,
            {},
            {}};
    if (seen.folder == "nowhere") return host->fail(call, MORTISE_NOT_FOUND, {"no folder", 9});
    ++num_open;
    *model = &seen;
    return MORTISE_OK;
  }
  static void close(void* model) noexcept { num_open -= model == &seen ? 1 : 100; }
  static int32_t score(void*, mortise_call*, const mortise_score_model_in* in, mortise_score_model_out* out) noexcept {
    for (int64_t i = 0; i < in->num_rows; ++i) {
      seen.messages.push_back(str(in->messages[i]));
      seen.tools.push_back(str(in->tools[i]));
      const auto size = double(in->completions[i].size);
      out->scores[i] = size == 1 ? std::nan("") : size - 2;
      out->num_tokens[i] = int64_t(in->prompts[i].size + in->completions[i].size);
      if (size == 1) out->row_failed(out->sink, i, MORTISE_OUT_OF_RANGE, {"too short", 9});
    }
    return status;
  }
};

class RewardModel : public testing::Test {
 protected:
  RewardModel() {
    static const mortise_score_model_vtable table = {sizeof table, 0, Scorer::open, Scorer::close, Scorer::score};
    extensions()[MORTISE_EXT_SCORE_MODEL] = &table;
    Scorer::status = MORTISE_OK;
  }
  ~RewardModel() override {
    extensions().erase(MORTISE_EXT_SCORE_MODEL);
    EXPECT_EQ(Scorer::num_open, 0) << "every model is closed once";
  }
  static const mortise_descriptor* plugin() {
    static const mortise_pack* pack =
        load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.reward_model.so");
    return find_plugin(pack, MORTISE_KIND_REWARD, "reward_model");
  }
  static RewardCall with(std::map<std::string, std::string> params) {
    params.try_emplace("model", "folder");
    return RewardCall(plugin(), std::move(params));
  }
};

TEST_F(RewardModel, HandsOnTheRowsAndTakesTheScores) {
  auto reward = with({{"truncation", "middle"}, {"max_length", "77"}, {"batch_size", "3"}, {"plain_text", "true"}});
  EXPECT_EQ(Scorer::seen.folder, "folder");
  EXPECT_EQ(Scorer::seen.chat_template, "");
  EXPECT_EQ(Scorer::seen.max_length, 77);
  EXPECT_EQ(Scorer::seen.batch_size, 3);
  EXPECT_EQ(Scorer::seen.truncation, MORTISE_TRUNCATE_MIDDLE);
  EXPECT_EQ(Scorer::seen.plain_text, 1);
  RewardRows rows{{"abcd", "x", ""}, {{"tools", MORTISE_COLUMN_JSON, {"[1]", std::nullopt, "[]"}, {}}}, {}, {}, 0};
  rows.messages = {"[{}]", "", "[]"};
  const std::vector<double> rewards = reward.score(rows);
  EXPECT_EQ(reward.status, MORTISE_OK);
  EXPECT_EQ(rewards[0], 2.0);
  EXPECT_TRUE(std::isnan(rewards[1])) << "a failed row has no reward";
  EXPECT_EQ(rewards[2], -2.0);
  ASSERT_EQ(reward.plugin.call.failed_rows.size(), 1U);
  EXPECT_EQ(reward.plugin.call.failed_rows[1].text, "too short");
  EXPECT_EQ(reward.plugin.call.failed_rows[1].code, MORTISE_OUT_OF_RANGE);
  EXPECT_EQ(Scorer::seen.messages, rows.messages);
  EXPECT_EQ(Scorer::seen.tools, (std::vector<std::string>{"[1]", "", "[]"}));
  EXPECT_EQ(reward.values["reward_model_tokens"][0], 10.0);
  EXPECT_EQ(reward.values.count("reward_model_logit"), 0U);
}

TEST_F(RewardModel, SigmoidBringsTheScoreBetweenZeroAndOne) {
  auto reward = with({{"transform", "sigmoid"}});
  EXPECT_EQ(Scorer::seen.truncation, MORTISE_TRUNCATE_ERROR);
  const std::vector<double> rewards = reward.score({{"ab", "abcde"}, {}, {}, {}, 0});
  EXPECT_DOUBLE_EQ(rewards[0], 0.5);
  EXPECT_DOUBLE_EQ(rewards[1], 1.0 / (1.0 + std::exp(-3.0)));
  EXPECT_EQ(reward.values["reward_model_logit"][1], 3.0);
}

TEST_F(RewardModel, SaysWhereItCannotWork) {
  EXPECT_NE(plugin()->flags & MORTISE_FLAG_NEEDS_ENGINE, 0U);
  EXPECT_EQ(with({{"model", "nowhere"}}).plugin.self, nullptr);
  EXPECT_THAT(with({{"model", ""}}).plugin.call.error, HasSubstr("name the folder"));
  auto reward = with({});
  Scorer::status = MORTISE_CANCELLED;
  (void)reward.score({{"ab"}, {}, {}, {}, 0});
  EXPECT_EQ(reward.status, MORTISE_CANCELLED);
  extensions().erase(MORTISE_EXT_SCORE_MODEL);
  EXPECT_THAT(with({}).plugin.call.error, HasSubstr("mortise.score_model/1"));
}

}  // namespace
}  // namespace mortise::test
