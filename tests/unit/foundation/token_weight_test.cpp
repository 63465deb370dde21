// The aggregation modes against their formulas, and the theorem: the loss does not depend on how the update is cut.
#include "foundation/batch/token_weight.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "foundation/base/rng.h"

namespace mortise {
namespace {

// Rows of 3, 2, 0 unmasked and 4 tokens; row 2 is fully masked; rows 0, 1 and rows 2, 3 are a prompt each.
struct Update {
  std::vector<int64_t> offsets = {0, 4, 6, 8, 12};
  std::vector<uint8_t> mask = {1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1};
  std::vector<int64_t> group = {7, 7, 9, 9};
  std::vector<float> weight = std::vector<float>(12, -1.0F);

  std::vector<float> weights(const TokenWeightOptions& options) {
    const auto done = token_weights(options, count_update(offsets, mask, group), offsets, mask, group, weight);
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    return weight;
  }
};

struct ModeCase {
  const char* mode;
  const char* rows;
  float row0, row1, row3;  // weight of a token of that row
  double factor = 10;
  bool by_rows = true;
};
class ModeTest : public testing::TestWithParam<ModeCase> {};

TEST_P(ModeTest, WeightsAreTheFormula) {
  const ModeCase& c = GetParam();
  Update update;
  const auto weight = update.weights({*parse_loss_agg_mode(c.mode), *parse_loss_agg_rows(c.rows), c.factor, c.by_rows});
  const std::vector<float> expected = {c.row0, 0, c.row0, c.row0, c.row1, c.row1, 0, 0, c.row3, c.row3, c.row3, c.row3};
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_FLOAT_EQ(weight[t], expected[t]) << c.mode << " token " << t;
}

INSTANTIATE_TEST_SUITE_P(All, ModeTest,
                         testing::Values(ModeCase{"token-mean", "nonempty", 1.0F / 9, 1.0F / 9, 1.0F / 9},
                                         ModeCase{"token-sum", "nonempty", 1, 1, 1},
                                         ModeCase{"seq-mean-token-mean", "nonempty", 1.0F / 9, 1.0F / 6, 1.0F / 12},
                                         ModeCase{"seq-mean-token-mean", "all", 1.0F / 12, 1.0F / 8, 1.0F / 16},
                                         ModeCase{"seq-mean-token-sum", "nonempty", 1.0F / 3, 1.0F / 3, 1.0F / 3},
                                         ModeCase{"seq-mean-token-sum", "all", 0.25F, 0.25F, 0.25F},
                                         ModeCase{"seq-mean-token-sum-norm", "nonempty", 1.0F / 30, 1.0F / 30,
                                                  1.0F / 30},
                                         ModeCase{"seq-mean-token-sum-norm", "nonempty", 0.1F, 0.1F, 0.1F, 10, false},
                                         ModeCase{"prompt-mean", "nonempty", 1.0F / 10, 1.0F / 10, 1.0F / 8}));

TEST(TokenWeightTest, PromptsWithoutTokensCountOnlyWithAll) {
  Update update;
  update.group = {7, 7, 9, 8};  // prompt 9 has only the masked row
  EXPECT_FLOAT_EQ(update.weights({LossAggMode::kPromptMean, LossAggRows::kNonempty, 0, true})[8], 1.0F / 8);
  EXPECT_FLOAT_EQ(update.weights({LossAggMode::kPromptMean, LossAggRows::kAll, 0, true})[8], 1.0F / 12);
}

// Whatever the cut, the sum over the parts is the same to the last bit: the weights are.
TEST(TokenWeightTest, AnyCutGivesTheSameWeights) {
  Update update;
  for (const std::string_view name : loss_agg_mode_names()) {
    const TokenWeightOptions options{*parse_loss_agg_mode(name), LossAggRows::kNonempty, 12, true};
    const std::vector<float> whole = update.weights(options);
    for (size_t cut = 1; cut < 4; ++cut) {
      const auto part = [&](size_t first, size_t last) {
        std::vector<int64_t> offsets;
        for (size_t row = first; row <= last; ++row) offsets.push_back(update.offsets[row] - update.offsets[first]);
        const auto begin = static_cast<size_t>(update.offsets[first]);
        const std::span mask = std::span(update.mask).subspan(begin, static_cast<size_t>(offsets.back()));
        const std::span group = std::span(update.group).subspan(first, last - first);
        return std::tuple(offsets, mask, group, begin);
      };
      UpdateCounts counts;
      for (const auto& [first, last] : {std::pair<size_t, size_t>{0, cut}, {cut, 4}}) {
        const auto [offsets, mask, group, begin] = part(first, last);
        counts.add(count_update(offsets, mask, group));
      }
      for (const auto& [first, last] : {std::pair<size_t, size_t>{0, cut}, {cut, 4}}) {
        const auto [offsets, mask, group, begin] = part(first, last);
        std::vector<float> weight(mask.size());
        ASSERT_TRUE(token_weights(options, counts, offsets, mask, group, weight).ok());
        for (size_t t = 0; t < weight.size(); ++t) EXPECT_EQ(weight[t], whole[begin + t]) << name << " cut " << cut;
      }
    }
  }
}

TEST(TokenWeightTest, AnUpdateWithoutTokensHasNoWeights) {
  Update update;
  update.mask.assign(12, 0);
  for (const std::string_view name : loss_agg_mode_names()) {
    for (const float w : update.weights({*parse_loss_agg_mode(name), LossAggRows::kNonempty, 5, true}))
      EXPECT_EQ(w, 0.0F);
  }
}

TEST(TokenWeightTest, WrongUseIsAnError) {
  Update update;
  const auto counts = count_update(update.offsets, update.mask, update.group);
  EXPECT_FALSE(token_weights({LossAggMode::kSeqMeanTokenSumNorm, LossAggRows::kNonempty, 0, true}, counts,
                             update.offsets, update.mask, update.group, update.weight)
                   .ok());
  EXPECT_FALSE(
      token_weights({}, counts, update.offsets, std::span(update.mask).first(5), update.group, update.weight).ok());
  EXPECT_FALSE(token_weights({}, UpdateCounts{}, update.offsets, update.mask, update.group, update.weight).ok());
  EXPECT_FALSE(parse_loss_agg_mode("token-men").ok());
  EXPECT_NE(parse_loss_agg_mode("token-men").error().next.find("token-mean"), std::string::npos);
  EXPECT_FALSE(parse_loss_agg_rows("some").ok());
}

}  // namespace
}  // namespace mortise
