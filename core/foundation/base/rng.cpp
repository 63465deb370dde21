// Philox4x32-10 and its streams. See rng.h for the paper and the rules.
#include "foundation/base/rng.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "foundation/base/cpu_clones.h"
#include "foundation/base/philox.h"

namespace mortise {
namespace {

constexpr uint32_t low32(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t high32(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

constexpr uint64_t kMultiplier0 = kPhiloxMultiplier0, kMultiplier1 = kPhiloxMultiplier1;

constexpr PhiloxCounter round_once(const PhiloxCounter& c, const PhiloxKey& k) {
  const uint64_t product0 = kMultiplier0 * c[0];
  const uint64_t product1 = kMultiplier1 * c[2];
  return {high32(product1) ^ c[1] ^ k[0], low32(product1), high32(product0) ^ c[3] ^ k[1], low32(product0)};
}

PhiloxCounter counter_of(uint64_t sample, uint32_t token) { return {0, token, low32(sample), high32(sample)}; }

}  // namespace

PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int i = 0; i < 9; ++i) {
    counter = round_once(counter, key);
    key[0] += kPhiloxStep0;
    key[1] += kPhiloxStep1;
  }
  return round_once(counter, key);
}

// The same rounds with the blocks' words side by side, which compilers turn into vector code.
MORTISE_CPU_CLONES void philox_eight_blocks(std::span<uint32_t, 32> out, PhiloxCounter first, PhiloxKey key) {
  constexpr int kLanes = 8;
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c0[l] = first[0] + static_cast<uint32_t>(l);
    c1[l] = first[1];
    c2[l] = first[2];
    c3[l] = first[3];
  }
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t product0 = kMultiplier0 * c0[l], product1 = kMultiplier1 * c2[l];
      c0[l] = static_cast<uint32_t>(product1 >> 32) ^ c1[l] ^ key[0];
      c1[l] = static_cast<uint32_t>(product1);
      c2[l] = static_cast<uint32_t>(product0 >> 32) ^ c3[l] ^ key[1];
      c3[l] = static_cast<uint32_t>(product0);
    }
    key[0] += kPhiloxStep0;
    key[1] += kPhiloxStep1;
  }
  for (int l = 0; l < kLanes; ++l) {
    const auto lane = static_cast<size_t>(l);
    out[lane] = c0[l];
    out[8 + lane] = c1[l];
    out[16 + lane] = c2[l];
    out[24 + lane] = c3[l];
  }
}

PhiloxKey derive_philox_key(uint64_t seed, RandomPurpose purpose, uint64_t step) {
  const PhiloxCounter block = philox4x32_10({low32(step), high32(step), static_cast<uint32_t>(purpose), 0x4D52544Bu},
                                            {low32(seed), high32(seed)});
  return {block[0], block[1]};
}

uint64_t random_u64(const RngKey& key, uint64_t index) {
  PhiloxCounter counter = counter_of(key.sample, key.token);
  counter[0] = low32(index / 2);
  const PhiloxCounter block = philox4x32_10(counter, derive_philox_key(key.seed, key.purpose, key.step));
  const size_t at = (index % 2) * 2;
  return block[at] | uint64_t{block[at + 1]} << 32;
}

void fill_uniform(std::span<float> out, uint64_t seed, RandomPurpose purpose, uint64_t step,
                  std::span<const uint64_t> samples, std::span<const uint32_t> tokens) {
  const PhiloxKey key = derive_philox_key(seed, purpose, step);
  for (size_t i = 0; i < out.size(); ++i) out[i] = unit_float(philox4x32_10(counter_of(samples[i], tokens[i]), key)[0]);
}

RandomStream::RandomStream(const RngKey& key)
    : key_(derive_philox_key(key.seed, key.purpose, key.step)), counter_(counter_of(key.sample, key.token)) {}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    block_ = philox4x32_10(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return block_[used_++];
}

uint64_t RandomStream::next_u64() {
  const uint64_t low = next_u32();
  return low | uint64_t{next_u32()} << 32;
}

float RandomStream::next_float() { return unit_float(next_u32()); }
double RandomStream::next_double() { return unit_double(next_u64()); }

double RandomStream::next_gumbel() {
  // The middle of each of 2^53 intervals: never 0 or 1, so both logarithms are finite.
  const double uniform = (static_cast<double>(next_u64() >> 11) + 0.5) * 0x1.0p-53;
  return -std::log(-std::log(uniform < 1.0 ? uniform : 1.0 - 0x1.0p-53));
}

double RandomStream::next_normal() {
  const double radius_uniform = (static_cast<double>(next_u64() >> 11) + 0.5) * 0x1.0p-53;
  const double angle = 2.0 * std::numbers::pi * next_double();
  return std::sqrt(-2.0 * std::log(radius_uniform)) * std::cos(angle);
}

uint64_t RandomStream::next_below(uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next_u64()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound: the uneven remainder is below it
    while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next_u64()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

std::vector<int64_t> random_permutation(int64_t n, uint64_t seed, RandomPurpose purpose, uint64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  RandomStream stream({.seed = seed, .purpose = purpose, .step = epoch, .sample = 0, .token = 0});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.next_below(i)]);
  return order;
}

}  // namespace mortise
