// See lora_dropout.h.
#include "model/layers/lora_dropout.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/layers/lora_dropout_operators.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kFeatures = 32;  // features of eight blocks with four words each

template <class T>
struct Masked {
  const T* x;
  T* out;
  const int64_t* owners;
  const int64_t* positions;
  int64_t width;
  int64_t first_feature;
  PhiloxKey key;
  uint32_t threshold;  // a word below it drops its feature
  T kept, dropped;     // what x is multiplied by
};

// Feature 32 c + i has word i of the eight blocks that begin at block 8 c.
template <class T>
MORTISE_INLINE void mask_rows(const Masked<T>& a, int64_t begin, int64_t end) {
  std::array<uint32_t, kFeatures> words{};
  for (int64_t row = begin; row < end; ++row) {
    const auto owner = static_cast<uint64_t>(a.owners[row]);
    PhiloxCounter counter{static_cast<uint32_t>(a.first_feature / kFeatures * 8),
                          static_cast<uint32_t>(a.positions[row]), static_cast<uint32_t>(owner),
                          static_cast<uint32_t>(owner >> 32)};
    int64_t skipped = a.first_feature % kFeatures;  // words of features before the first one
    for (int64_t first = 0; first < a.width; counter[0] += 8) {
      philox_eight_blocks(words, counter, a.key);
      const T* x = a.x + row * a.width + first;
      T* out = a.out + row * a.width + first;
      const uint32_t* const word = words.data() + skipped;
      const int64_t count = std::min(kFeatures - skipped, a.width - first);
      for (int64_t i = 0; i < count; ++i) out[i] = x[i] * (word[i] < a.threshold ? a.dropped : a.kept);
      first += count;
      skipped = 0;
    }
  }
}

MORTISE_CPU_CLONES void mask_kernel(const Masked<float>& a, int64_t begin, int64_t end) { mask_rows(a, begin, end); }
MORTISE_CPU_CLONES void mask_kernel(const Masked<double>& a, int64_t begin, int64_t end) { mask_rows(a, begin, end); }

at::Tensor masked(const at::Tensor& x_NI, const LoraDropout& dropout, int64_t module, int64_t first_feature,
                  double kept, double dropped) {
  const DropoutMask mask = dropout_mask(dropout, module, first_feature);
  if (!x_NI.is_cpu()) return masked_by_operators(x_NI, dropout, mask, kept, dropped);
  const at::Tensor x = x_NI.contiguous();
  at::Tensor out = at::empty_like(x);
  dispatch_float(x, [&](auto zero) {
    using T = decltype(zero);
    const Masked<T> rows{x.const_data_ptr<T>(),
                         out.mutable_data_ptr<T>(),
                         dropout.owners_N.const_data_ptr<int64_t>(),
                         dropout.positions_N.const_data_ptr<int64_t>(),
                         x.size(1),
                         mask.first_feature,
                         mask.key,
                         mask.threshold,
                         static_cast<T>(kept),
                         static_cast<T>(dropped)};
    compute_ranges(x.size(0), 8, [&](int64_t begin, int64_t end) { mask_kernel(rows, begin, end); });
  });
  return out;
}

}  // namespace

// 64 bits for each update and matrix.
DropoutMask dropout_mask(const LoraDropout& dropout, int64_t module, int64_t first_feature) {
  const uint64_t bits =
      random_u64({dropout.seed, RandomPurpose::kDropout, dropout.update, static_cast<uint64_t>(module), 0});
  return {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)},
          static_cast<uint32_t>(std::min(std::round(dropout.probability * 0x1.0p32), 0x1.0p32 - 1.0)),
          first_feature};
}

at::Tensor lora_dropped(const at::Tensor& x_NI, const LoraDropout& dropout, int64_t module, int64_t first_feature) {
  return masked(x_NI, dropout, module, first_feature, 1.0 / (1.0 - dropout.probability), 0.0);
}

at::Tensor lora_dropout_change(const at::Tensor& x_NI, const LoraDropout& dropout, int64_t module,
                               int64_t first_feature) {
  return masked(x_NI, dropout, module, first_feature, dropout.probability / (1.0 - dropout.probability), -1.0);
}

}  // namespace mortise
