// Philox against the vectors published with Random123, and what the streams promise.
#include "foundation/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace mortise {
namespace {

TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EightBlocksAtOnceAreTheBlocksOneByOne) {
  const PhiloxKey key{0xa4093822, 0x299f31d0};
  for (const uint32_t begin : {0U, 7U, 0xfffffffcU}) {
    std::array<uint32_t, 32> words{};
    const PhiloxCounter first{begin, 3, 0x85a308d3, 11};
    philox_eight_blocks(words, first, key);
    for (uint32_t l = 0; l < 8; ++l) {
      const PhiloxCounter block = philox4x32_10({begin + l, first[1], first[2], first[3]}, key);
      for (size_t w = 0; w < 4; ++w) EXPECT_EQ(words[8 * w + l], block[w]) << begin << " " << l << " " << w;
    }
  }
}

// The numbers of a run must never change between versions. Computed by a separate implementation in another language
// from the rules in rng.h.
TEST(RandomStream, FrozenValues) {
  RandomStream stream(
      {.seed = 42, .purpose = RandomPurpose::kSampling, .step = 7, .sample = 1234567890123, .token = 5});
  EXPECT_EQ(stream.next_u64(), 0x79067bf4157cd886u);
  EXPECT_EQ(stream.next_u64(), 0x897ed83a18ee561au);
  EXPECT_EQ(stream.next_u64(), 0x14a6f346b4b938dbu);
  EXPECT_EQ(random_permutation(10, 1, RandomPurpose::kDataShuffle, 3),
            (std::vector<int64_t>{2, 9, 8, 7, 5, 3, 0, 1, 4, 6}));
}

TEST(RandomStream, IndexedValuesEqualTheSequence) {
  const RngKey key{.seed = 3, .purpose = RandomPurpose::kPlugin, .step = 9, .sample = 2, .token = 1};
  RandomStream stream(key);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(stream.next_u64(), random_u64(key, i)) << i;
}

TEST(RandomStream, BatchedUniformEqualsTheStream) {
  const std::vector<uint64_t> samples{0, 1, 77, uint64_t{1} << 40};
  const std::vector<uint32_t> tokens{0, 3, 9, 1};
  std::vector<float> values(4);
  fill_uniform(values, 11, RandomPurpose::kSampling, 2, samples, tokens);
  for (size_t i = 0; i < 4; ++i) {
    RandomStream stream(
        {.seed = 11, .purpose = RandomPurpose::kSampling, .step = 2, .sample = samples[i], .token = tokens[i]});
    EXPECT_EQ(values[i], stream.next_float());
  }
}

TEST(RandomStream, EveryPartOfTheKeyMatters) {
  const RngKey base{.seed = 1, .purpose = RandomPurpose::kTest, .step = 1, .sample = 1, .token = 1};
  std::set<uint64_t> values{random_u64(base)};
  for (const uint64_t other : {uint64_t{2}, uint64_t{1} << 32 | 1, uint64_t{1} << 63}) {
    RngKey key = base;
    key.seed = other;
    values.insert(random_u64(key));
    key = base, key.step = other;
    values.insert(random_u64(key));
    key = base, key.sample = other;
    values.insert(random_u64(key));
  }
  RngKey key = base;
  key.token = 2;
  values.insert(random_u64(key));
  key = base, key.purpose = RandomPurpose::kInit;
  values.insert(random_u64(key));
  EXPECT_EQ(values.size(), 12u);
}

TEST(RandomStream, FloatsStayBelowOne) {
  EXPECT_EQ(unit_float(0xffffffff), 1.0f - 0x1.0p-24f);
  EXPECT_EQ(unit_double(~uint64_t{0}), 1.0 - 0x1.0p-53);
  EXPECT_EQ(unit_float(0), 0.0f);
}

// Mean and variance within five standard errors of what the distribution has.
TEST(RandomStream, Moments) {
  constexpr int kCount = 200'000;
  RandomStream stream({.seed = 5});
  double uniform = 0, normal = 0, normal2 = 0, gumbel = 0;
  for (int i = 0; i < kCount; ++i) {
    uniform += stream.next_double();
    const double z = stream.next_normal();
    normal += z, normal2 += z * z;
    gumbel += stream.next_gumbel();
  }
  const double standard_error = 1 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(uniform / kCount, 0.5, 5 * standard_error / std::sqrt(12.0));
  EXPECT_NEAR(normal / kCount, 0.0, 5 * standard_error);
  EXPECT_NEAR(normal2 / kCount, 1.0, 5 * standard_error * std::sqrt(2.0));
  EXPECT_NEAR(gumbel / kCount, 0.5772156649, 5 * standard_error * 1.2825);
}

TEST(RandomStream, BoundedIntegersAreEven) {
  RandomStream stream({.seed = 8});
  std::vector<int> counts(6);
  for (int i = 0; i < 60'000; ++i) ++counts.at(stream.next_below(6));
  double chi2 = 0;
  for (const int count : counts) chi2 += (count - 10'000.0) * (count - 10'000.0) / 10'000.0;
  EXPECT_LT(chi2, 25.7);  // five degrees of freedom, one in ten thousand
  EXPECT_EQ(stream.next_below(1), 0u);
  // With a bound just above 2^63 half of the draws must be rejected; without rejection small values come twice as
  // often.
  const uint64_t bound = (uint64_t{1} << 63) + 1;
  int low = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t value = stream.next_below(bound);
    ASSERT_LT(value, bound);
    low += value < bound / 2 ? 1 : 0;
  }
  EXPECT_NEAR(low, 10'000, 5 * std::sqrt(5'000.0));
}

TEST(RandomPermutation, IsOneAndDependsOnTheEpoch) {
  const auto order = random_permutation(1000, 1, RandomPurpose::kDataShuffle, 0);
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
  EXPECT_EQ(order, random_permutation(1000, 1, RandomPurpose::kDataShuffle, 0));
  EXPECT_NE(order, random_permutation(1000, 1, RandomPurpose::kDataShuffle, 1));
  EXPECT_NE(order, random_permutation(1000, 2, RandomPurpose::kDataShuffle, 0));
  EXPECT_NE(order, random_permutation(1000, 1, RandomPurpose::kMinibatchShuffle, 0));
  EXPECT_TRUE(random_permutation(0, 1, RandomPurpose::kDataShuffle, 0).empty());
  // All six orders of three come about equally often over epochs.
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch)
    ++counts[random_permutation(3, 4, RandomPurpose::kDataShuffle, epoch)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [permutation, count] : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(1000.0 * 5 / 6));
}

}  // namespace
}  // namespace mortise
