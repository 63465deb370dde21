// Counter-based random numbers: a value is a function of (run seed, purpose, step, sample, token, index), so it does
// not depend on batch split, slot, thread count or order of calls, and a resume needs no saved generator.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011). A block of 128 bits
// costs ten multiply rounds, about 10 ns. The key of a stream is itself a Philox block of (seed, purpose, step).
// The same bits on every machine, except next_gumbel and next_normal, which go through the C library's log and cos.
// Not for secrets. Thread rule: plain values, no shared state; one RandomStream per thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace mortise {

// The purpose of a number. Results of a run depend on the values: never renumber, only append.
enum class RandomPurpose : uint32_t {
  kSampling = 1,     // tokens of training rollouts
  kDataShuffle = 2,  // order of an epoch
  kInit = 3,         // fresh weights
  kMinibatchShuffle = 4,
  kPlugin = 5,       // host service `random` of the C ABI
  kValidation = 6,   // tokens of validation and of `mortise generate`
  kDropout = 7,      // LoRA dropout; step is the update
  kReward = 8,       // rewards that sample
  kAdapterInit = 9,  // fresh adapters
  kRounding = 10,    // stochastic rounding of the policy's weights; step is the update
  kCriticRounding = 11,
  kSftMix = 12,  // the supervised rows of updates: their order, and their LoRA dropout
  kCriticAdapterInit = 13,
  kEmbeddingNoise = 14,  // NEFTune; step is the update
  kTest = 99,
};

struct RngKey {
  uint64_t seed = 0;  // the run's seed
  RandomPurpose purpose = RandomPurpose::kTest;
  uint64_t step = 0;    // step, or epoch for shuffles
  uint64_t sample = 0;  // place of the row in the whole step (global, never a slot)
  uint32_t token = 0;   // place of the token in the completion
};

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// The bare block function (known answers in tests/unit/foundation/rng_test.cpp).
PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key);

// Eight blocks at once, for numbers in bulk: word w of the block of {first[0] + l, first[1], first[2], first[3]} goes to
// out[8 w + l]. About 1 ns per word with AVX2.
void philox_eight_blocks(std::span<uint32_t, 32> out, PhiloxCounter first, PhiloxKey key);

// The Philox key of all streams of (seed, purpose, step).
PhiloxKey derive_philox_key(uint64_t seed, RandomPurpose purpose, uint64_t step);

// The index-th 64-bit value of this key; equals the index-th next_u64() of RandomStream(key).
uint64_t random_u64(const RngKey& key, uint64_t index = 0);

// [0,1) with 24 and 53 bits: the top bits, so every value is exact and 1 is never reached.
constexpr float unit_float(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }
constexpr double unit_double(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// Uniform [0,1) floats for the samples at one (seed, purpose, step, token), for a batched sampler. Element i equals
// RandomStream({seed, purpose, step, samples[i], token}).next_float().
void fill_uniform(std::span<float> out, uint64_t seed, RandomPurpose purpose, uint64_t step,
                  std::span<const uint64_t> samples, std::span<const uint32_t> tokens);

// The values of one key in order. After 2^34 values of 32 bits it would start again.
class RandomStream {
 public:
  explicit RandomStream(const RngKey& key);

  uint32_t next_u32();
  uint64_t next_u64();
  float next_float();    // [0,1), one 32-bit value
  double next_double();  // [0,1), one 64-bit value
  double next_gumbel();  // -log(-log(u)), u in (0,1)
  double next_normal();  // mean 0, variance 1 (Box-Muller, one of the pair)
  // [0, bound) without bias (multiplication with rejection, Lemire 2019). Precondition: bound > 0.
  uint64_t next_below(uint64_t bound);

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
  PhiloxCounter block_{};
  uint32_t used_ = 4;  // values of block_ already given
};

// Fisher-Yates permutation of 0..n-1 for an epoch; O(n) time and memory.
std::vector<int64_t> random_permutation(int64_t n, uint64_t seed, RandomPurpose purpose, uint64_t epoch);

}  // namespace mortise
