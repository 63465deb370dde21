// See lora_dropout_operators.h.
#include "model/layers/lora_dropout_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "model/tensor/philox_operators.h"

namespace mortise {
namespace {

constexpr int64_t kFeatures = 32;  // features that eight blocks of four words decide
constexpr int64_t kLow32 = 0xFFFFFFFF;

// The words of the features of some tokens, [rows, width]. Feature 32 c + 8 w + l has word w of block 8 c + l.
at::Tensor feature_words(const at::Tensor& owners_N, const at::Tensor& positions_N, int64_t width,
                         const DropoutMask& mask) {
  const int64_t first_chunk = mask.first_feature / kFeatures, skipped = mask.first_feature % kFeatures;
  const int64_t rows = owners_N.size(0), chunks = (skipped + width + kFeatures - 1) / kFeatures;
  const at::Tensor blocks = at::arange(first_chunk * 8, (first_chunk + chunks) * 8, owners_N.options()).unsqueeze(0);
  const at::Tensor owners = owners_N.unsqueeze(1), positions = positions_N.unsqueeze(1);
  const at::Tensor words = philox_eight_words(
      {blocks, positions.__and__(kLow32), owners.__and__(kLow32), owners.__rshift__(32).__and__(kLow32)}, mask.key);
  return words.reshape({rows, chunks * kFeatures}).narrow(1, skipped, width);
}

}  // namespace

at::Tensor masked_by_operators(const at::Tensor& x_NI, const LoraDropout& dropout, const DropoutMask& mask, double kept,
                               double dropped, int64_t most_blocks) {
  const int64_t rows = x_NI.size(0), width = x_NI.size(1);
  at::Tensor out = at::empty_like(x_NI, at::MemoryFormat::Contiguous);
  const at::Tensor owners = dropout.owners_N.to(x_NI.device()), positions = dropout.positions_N.to(x_NI.device());
  const at::Tensor factors[] = {at::scalar_tensor(kept, x_NI.options()), at::scalar_tensor(dropped, x_NI.options())};
  const int64_t most = std::max<int64_t>(1, most_blocks / (8 * ((width + kFeatures - 1) / kFeatures)));
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t count = std::min(most, rows - begin);
    const at::Tensor words =
        feature_words(owners.narrow(0, begin, count), positions.narrow(0, begin, count), width, mask);
    const at::Tensor factor = at::where(words < static_cast<int64_t>(mask.threshold), factors[1], factors[0]);
    out.narrow(0, begin, count).copy_(x_NI.narrow(0, begin, count) * factor);
  }
  return out;
}

}  // namespace mortise
