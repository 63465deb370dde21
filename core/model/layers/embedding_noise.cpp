// See embedding_noise.h.
#include "model/layers/embedding_noise.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "foundation/base/rng.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kNumbers = 32;  // numbers of eight blocks with four words each

template <class T>
struct NoiseRows {
  T* out;
  const int64_t* rows;
  const int64_t* positions;
  const double* bounds;
  int64_t width;
  PhiloxKey key;
};

// Number 32 c + i has word i of the eight blocks that begin at block 8 c.
template <class T>
MORTISE_INLINE void noise_rows(const NoiseRows<T>& a, int64_t begin, int64_t end) {
  std::array<uint32_t, kNumbers> words{};
  for (int64_t token = begin; token < end; ++token) {
    const auto row = static_cast<uint64_t>(a.rows[token]);
    PhiloxCounter counter{0, static_cast<uint32_t>(a.positions[token]), static_cast<uint32_t>(row),
                          static_cast<uint32_t>(row >> 32)};
    const T bound = static_cast<T>(a.bounds[token]);
    for (int64_t first = 0; first < a.width; first += kNumbers, counter[0] += 8) {
      philox_eight_blocks(words, counter, a.key);
      T* const out = a.out + token * a.width + first;
      const int64_t count = std::min(kNumbers, a.width - first);
      for (int64_t i = 0; i < count; ++i)
        out[i] = bound * (static_cast<T>(2) * static_cast<T>(unit_float(words[i])) - 1);
    }
  }
}

MORTISE_CPU_CLONES void noise_kernel(const NoiseRows<float>& a, int64_t begin, int64_t end) {
  noise_rows(a, begin, end);
}
MORTISE_CPU_CLONES void noise_kernel(const NoiseRows<double>& a, int64_t begin, int64_t end) {
  noise_rows(a, begin, end);
}

}  // namespace

at::Tensor embedding_noise(const EmbeddingNoise& noise, int64_t width, const at::TensorOptions& numbers) {
  const uint64_t bits = random_u64({noise.seed, RandomPurpose::kEmbeddingNoise, noise.update, 0, 0});
  const PhiloxKey key{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  at::Tensor out = at::empty({noise.rows_N.size(0), width}, numbers.device(at::kCPU));
  dispatch_float(out, [&](auto zero) {
    using T = decltype(zero);
    const NoiseRows<T> rows{out.mutable_data_ptr<T>(),
                            noise.rows_N.const_data_ptr<int64_t>(),
                            noise.positions_N.const_data_ptr<int64_t>(),
                            noise.bounds_N.const_data_ptr<double>(),
                            width,
                            key};
    compute_ranges(out.size(0), 8, [&](int64_t begin, int64_t end) { noise_kernel(rows, begin, end); });
  });
  return out.to(numbers.device());
}

}  // namespace mortise
