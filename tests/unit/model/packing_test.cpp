// The packed batch: shared prompts, predictors, positions, and refused rows.
#include "model/tensor/packing.h"

#include <gtest/gtest.h>

namespace mortise {
namespace {

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

using Ids = std::vector<int64_t>;

TEST(Packing, SharesThePromptOfAGroup) {
  const Ids prompt = {5, 6, 7};
  const Ids first = {1, 2};
  const Ids second = {3};
  const Ids third = {4, 4, 4};
  const PackRow rows[] = {{prompt, first, 9}, {prompt, second, 9}, {prompt, third, 9}};
  const auto packed = pack_rows(rows, {.vocab_size = 10});
  ASSERT_TRUE(packed.ok()) << packed.error().to_string();
  EXPECT_EQ(values(packed->token_ids_N), (Ids{5, 6, 7, 1, 4, 4}));  // last tokens of responses are no inputs
  EXPECT_EQ(values(packed->positions_N), (Ids{0, 1, 2, 3, 3, 4}));
  EXPECT_EQ(values(packed->predict_index_R), (Ids{2, 3, 2, 2, 4, 5}));
  EXPECT_EQ(values(packed->targets_R), (Ids{1, 2, 3, 4, 4, 4}));
  EXPECT_EQ(packed->row_offsets, (Ids{0, 2, 3, 6}));
  ASSERT_EQ(packed->segments.size(), 3U);
  EXPECT_EQ(packed->segments[2].prefix_segment, 0);
  EXPECT_EQ(packed->segments[2].begin, 4);
  EXPECT_EQ(packed->max_position(), 4);
}

TEST(Packing, WithoutSharingARowIsOneSegment) {
  const Ids prompt = {5, 6};
  const Ids response = {1, 2};
  const PackRow rows[] = {{prompt, response, 9}, {prompt, response, 9}};
  const auto packed = pack_rows(rows, {.share_prefix = false, .keep_last_token = true, .vocab_size = 10});
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(values(packed->token_ids_N), (Ids{5, 6, 1, 2, 5, 6, 1, 2}));
  EXPECT_EQ(values(packed->predict_index_R), (Ids{1, 2, 5, 6}));
  EXPECT_EQ(packed->last_index, (Ids{3, 7}));
  EXPECT_EQ(packed->segments.size(), 2U);
}

TEST(Packing, DifferentPromptsOfOneKeyAreNotShared) {
  const Ids a = {5, 6};
  const Ids b = {5, 7};
  const Ids response = {1, 2};
  const PackRow rows[] = {{a, response, 1}, {b, response, 1}, {a, response, 1}, {a, response, -1}};
  const auto packed = pack_rows(rows, {.vocab_size = 10});
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(values(packed->token_ids_N), (Ids{5, 6, 1, 5, 7, 1, 1, 5, 6, 1}));
  EXPECT_EQ(packed->segments[4].prefix_segment, 0);
  EXPECT_EQ(packed->segments[5].prefix_segment, -1);
}

TEST(Packing, EmptyResponsesAndRows) {
  const Ids prompt = {5, 6};
  const PackRow rows[] = {{prompt, {}, -1}, {{}, {}, -1}};
  const auto packed = pack_rows(rows, {.keep_last_token = true, .vocab_size = 10});
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(packed->num_targets(), 0);
  EXPECT_EQ(packed->row_offsets, (Ids{0, 0, 0}));
  EXPECT_EQ(packed->last_index, (Ids{1, -1}));
}

TEST(Packing, RefusesBadRowsByName) {
  const Ids prompt = {5, 6};
  const Ids bad = {1, 10};
  const Ids negative = {-1};
  const PackRow high[] = {{prompt, prompt, 0}, {prompt, bad, 0}};
  auto packed = pack_rows(high, {.vocab_size = 10});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().kind, ErrorKind::kData);
  EXPECT_NE(packed.error().to_string().find("row 1"), std::string::npos) << packed.error().to_string();
  EXPECT_NE(packed.error().to_string().find("id 10"), std::string::npos) << packed.error().to_string();
  const PackRow low[] = {{negative, prompt, 0}};
  packed = pack_rows(low, {.vocab_size = 10});
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().to_string().find("id -1"), std::string::npos) << packed.error().to_string();
  const PackRow orphan[] = {{{}, prompt, 0}};
  EXPECT_FALSE(pack_rows(orphan, {.vocab_size = 10}).ok());
  const PackRow longer[] = {{prompt, prompt, 0}};
  packed = pack_rows(longer, {.vocab_size = 10, .max_positions = 3});
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().to_string().find("4 tokens"), std::string::npos);
}

}  // namespace
}  // namespace mortise
