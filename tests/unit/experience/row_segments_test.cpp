// RowSegments asks for the next piece of each unfinished row, and joins the pieces with their versions and log-probs.
#include "experience/rollout/row_segments.h"

#include <gmock/gmock.h>

#include "char_folder.h"

namespace mortise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kStopped = static_cast<int32_t>(FinishReason::kStop);
constexpr int32_t kCut = static_cast<int32_t>(FinishReason::kLength);

class RowSegmentsTest : public testing::Test {
 protected:
  void SetUp() override {
    plan_.num_samples = 2;
    plan_.seed = 9;
    plan_.sampling.max_new_tokens = 5;
    for (const int64_t step : {4, 5}) {
      PromptBatch& prompts = prompts_.emplace_back();
      prompts.step = step;
      prompts.prompts.resize(1);
      prompts.prompts[0].token_ids = {step, 1};
      samples_.push_back(unsampled_rows(prompts, plan_));
      is_done_.emplace_back(2, 0);
    }
  }
  OpenRows open(size_t batch, int64_t piece, int64_t max_tokens) {
    return {&prompts_[batch], &samples_[batch], &is_done_[batch], piece, max_tokens};
  }
  static std::vector<RolloutRequest> begin_all(RowSegments& all) {
    std::vector<RolloutRequest> requests;
    for (size_t i = 0; i < all.open().size(); ++i) all.begin(i, requests);
    return requests;
  }
  static void give(RowSegments& all, int64_t request, int64_t sample, int64_t version, int32_t reason,
                   const std::vector<int64_t>& ids, const std::vector<float>& log_prob) {
    all.take({request, sample, reason, version, ids, log_prob, {}});
  }

  test::CharFolder folder_;
  Tokenizer tokenizer_ = folder_.tokenizer();
  RolloutPlan plan_;
  std::deque<PromptBatch> prompts_;
  std::deque<SampleBatch> samples_;
  std::deque<std::vector<uint8_t>> is_done_;
};

TEST_F(RowSegmentsTest, PiecesOfARowAreJoined) {
  {
    const std::vector<OpenRows> batches{open(0, 0, 2)};
    RowSegments all(batches, plan_, tokenizer_);
    const std::vector<RolloutRequest> requests = begin_all(all);
    ASSERT_EQ(requests.size(), 1U) << "the rows of a group share their prompt";
    EXPECT_EQ(requests[0].num_samples, 2);
    EXPECT_EQ(requests[0].seed, 9U) << "the first piece is drawn like a whole row";
    EXPECT_EQ(requests[0].sampling->max_new_tokens, 2);
    give(all, 0, 1, 6, kStopped, {11, 2}, {-0.1F, -0.2F});
    give(all, 0, 0, 6, kCut, {12, 13}, {-0.3F, -0.4F});
    EXPECT_EQ(all.num_arrived(), 2);
  }
  EXPECT_THAT(is_done_[0], ElementsAre(0, 1));
  EXPECT_THAT(samples_[0].rows[0].text, IsEmpty()) << "only a finished row has a text";
  const std::vector<OpenRows> batches{open(0, 1, 3)};
  RowSegments all(batches, plan_, tokenizer_);
  const std::vector<RolloutRequest> requests = begin_all(all);
  EXPECT_EQ(all.num_begun(), 1);
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_THAT(requests[0].prompt_ids, ElementsAre(4, 1, 12, 13));
  EXPECT_EQ(requests[0].first_row_id, 0);
  EXPECT_NE(requests[0].seed, 9U) << "random numbers of the first piece would be used twice";
  give(all, 0, 0, 8, kCut, {14, 15, 16}, {-0.5F, -0.6F, -0.7F});
  const Sample& row = samples_[0].rows[0];
  EXPECT_THAT(row.token_ids, ElementsAre(12, 13, 14, 15, 16));
  EXPECT_THAT(row.log_prob, ElementsAre(-0.3F, -0.4F, -0.5F, -0.6F, -0.7F));
  EXPECT_EQ(row.weight_version, 6) << "a row is as old as its oldest token";
  ASSERT_EQ(row.spans.size(), 2U);
  EXPECT_EQ(row.spans[0].num_tokens, 2);
  EXPECT_EQ(row.spans[1].version, 8);
  EXPECT_EQ(row.spans[1].num_tokens, 3);
  EXPECT_EQ(row.text, tokenizer_.decode(row.token_ids, true));
  EXPECT_THAT(is_done_[0], ElementsAre(1, 1)) << "five tokens are the longest row";
}

TEST_F(RowSegmentsTest, BatchesAreOutTogether) {
  samples_[0].rows[1].token_ids = {11};
  samples_[0].rows[1].log_prob = {-0.1F};
  is_done_[0] = {1, 0};
  const std::vector<OpenRows> batches{open(0, 1, 4), open(1, 0, 2)};
  RowSegments all(batches, plan_, tokenizer_);
  const std::vector<RolloutRequest> requests = begin_all(all);
  EXPECT_EQ(all.num_begun(), 3);
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].step, 4);
  EXPECT_EQ(requests[0].first_row_id, 1) << "the random key of a row stays";
  EXPECT_EQ(requests[1].step, 5);
  EXPECT_EQ(requests[1].first_row_id, 0);
  give(all, requests[1].request_id, 1, 3, kStopped, {21}, {-0.3F});
  give(all, requests[0].request_id, 0, 3, kStopped, {22}, {-0.2F});
  give(all, requests[1].request_id, 0, 3, kCut, {23, 24}, {-0.4F, -0.5F});
  EXPECT_THAT(samples_[0].rows[0].token_ids, IsEmpty());
  EXPECT_THAT(samples_[0].rows[1].token_ids, ElementsAre(11, 22));
  EXPECT_THAT(samples_[1].rows[1].token_ids, ElementsAre(21));
  EXPECT_THAT(samples_[1].rows[0].token_ids, ElementsAre(23, 24));
  EXPECT_THAT(is_done_[0], ElementsAre(1, 1));
  EXPECT_THAT(is_done_[1], ElementsAre(0, 1));
}

// A backend that gives log-probs for some pieces only gives none that could be learnt from.
TEST_F(RowSegmentsTest, APieceWithoutLogProbsLeavesTheRowWithoutThem) {
  for (const int64_t piece : {0, 1}) {
    const std::vector<OpenRows> batches{open(0, piece, 2)};
    RowSegments all(batches, plan_, tokenizer_);
    const std::vector<float> log_prob = piece == 0 ? std::vector<float>{} : std::vector<float>{-0.1F, -0.2F};
    give(all, 0, 0, 1, kCut, {11, 12}, log_prob);
  }
  EXPECT_THAT(samples_[0].rows[0].token_ids, ElementsAre(11, 12, 11, 12));
  EXPECT_THAT(samples_[0].rows[0].log_prob, IsEmpty());
}

// Ranks that share the rows take these prompts one by one, so a rank asks for some of them only.
TEST_F(RowSegmentsTest, OnlyPromptsThatWereBegunAreAskedFor) {
  prompts_[1].prompts.resize(2);
  prompts_[1].prompts[1].token_ids = {7, 1};
  samples_[1] = unsampled_rows(prompts_[1], plan_);
  is_done_[0] = {1, 1};
  is_done_[1] = {0, 1, 0, 0};
  samples_[1].rows[0].token_ids = {9};
  const std::vector<OpenRows> batches{open(0, 1, 2), open(1, 1, 2)};
  const std::vector<OpenPrompt> found = open_prompts(batches);
  ASSERT_EQ(found.size(), 2U) << "the first batch has no row left";
  EXPECT_EQ(found[0].batch, 1U);
  EXPECT_EQ(found[0].num_rows, 1);
  EXPECT_EQ(found[1].prompt, 1);
  EXPECT_EQ(found[1].num_rows, 2);
  RowSegments all(batches, plan_, tokenizer_);
  std::vector<RolloutRequest> requests;
  all.begin(1, requests);
  EXPECT_EQ(all.num_begun(), 2);
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].request_id, 4) << "rows of both batches count";
  EXPECT_EQ(requests[0].prompt_ids[0], 7);
  all.begin(0, requests);
  EXPECT_EQ(all.num_begun(), 3);
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[2].request_id, 2);
  EXPECT_THAT(requests[2].prompt_ids, ElementsAre(5, 1, 9));
}

}  // namespace
}  // namespace mortise
