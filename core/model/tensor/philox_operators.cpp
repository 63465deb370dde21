// See philox_operators.h.
#include "model/tensor/philox_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "foundation/base/philox.h"

namespace mortise {
namespace {

constexpr int64_t kLow16 = 0xFFFF, kLow32 = 0xFFFFFFFF;

// The high and low 32 bits of a product of 32-bit numbers in int64.
std::pair<at::Tensor, at::Tensor> product_words(const at::Tensor& a, int64_t factor) {
  const at::Tensor by_low = a * (factor & kLow16), by_high = a * (factor >> 16);
  const at::Tensor high = (by_high + by_low.__rshift__(16)).__rshift__(16);
  const at::Tensor low = (by_low + by_high.__and__(kLow16).__lshift__(16)).__and__(kLow32);
  return {high, low};
}

}  // namespace

// Ten rounds, as philox4x32_10.
std::array<at::Tensor, 4> philox_operators(std::array<at::Tensor, 4> c, const PhiloxKey& key) {
  uint32_t first_key = key[0], second_key = key[1];
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = product_words(c[0], kPhiloxMultiplier0);
    const auto [high1, low1] = product_words(c[2], kPhiloxMultiplier1);
    c = {high1.__xor__(c[1]).__xor__(static_cast<int64_t>(first_key)), low1,
         high0.__xor__(c[3]).__xor__(static_cast<int64_t>(second_key)), low0};
    first_key += kPhiloxStep0;
    second_key += kPhiloxStep1;
  }
  return c;
}

at::Tensor philox_eight_words(const std::array<at::Tensor, 4>& counter, const PhiloxKey& key) {
  std::array<at::Tensor, 4> words = philox_operators(counter, key);
  std::vector<int64_t> apart = words[0].sizes().vec();  // [..., G, 8]
  const int64_t groups = apart.back() / 8;
  apart.back() = groups;
  apart.push_back(8);
  for (at::Tensor& word : words) word = word.reshape(apart);
  apart.back() = 32;
  return at::stack(words, -2).reshape(apart);
}

}  // namespace mortise
