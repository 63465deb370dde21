// The fused head's work on a chunk of tokens by the kernels of core/cuda: float32 logits come from a product for a
// block of the vocabulary, one launch reads them, and one turns them into gradients, in place or in bfloat16 for a head
// that rounds. operator_head.h calls it where there are kernels. Log-probs, entropies and normalisers are float64.
//
// Cost: 2RHV flops forward, and each logit is read once; 4RHV backward, and each is read and written once. Without kept
// logits backward takes 6RHV. Memory: one block, or the kept logits; gradients in bfloat16 take a block of their own. Sums
// have a fixed order. Thread rule: as libtorch. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/device/kernel_table.h"
#include "model/head/chunks.h"
#include "model/head/log_prob_head.h"

namespace mortise::by_operators {

// Tokens of a chunk: [C, H] as products read them (head_inputs()), and int64 [C] in the same place.
struct TokenChunk {
  at::Tensor inputs_CH, targets_C;
};

class KernelHead {
 public:
  // Null: there are none for this head, or it is not float32.
  static const DeviceKernels* find(const at::Tensor& hidden, const VocabularyHead& head);

  // `head`: with its rounded weight, if it rounds.
  KernelHead(const DeviceKernels& kernels, const VocabularyHead& head, double temperature, int64_t block_columns);

  struct Forward {
    at::Tensor numbers;                   // [3, C]: log of the sum of exp, log-prob, entropy
    at::Tensor rows;                      // MortiseCudaHeadRow of each token
    std::vector<at::Tensor> logits = {};  // by block, if they were kept
  };
  // Tokens of a chunk whose logits are kept: a multiple of kMinChunkRows, so that the tokens' columns begin aligned.
  [[nodiscard]] static int64_t rows_to_keep(int64_t vocab) {
    const int64_t rows = kKeptBytes / (vocab * int64_t{sizeof(float)});
    return std::max(kMinChunkRows, rows / kMinChunkRows * kMinChunkRows);
  }
  [[nodiscard]] Forward forward(const TokenChunk& chunk, bool keeps_logits) const;
  // The rows of tokens from what forward() gave of them, [C] each in float64.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& lse, const at::Tensor& entropy) const;
  // Adds to d_hidden_CH and d_weight_VH; either may be undefined. grads [2, C]: by log-prob and by entropy, in float32.
  // Kept logits become gradients; others are computed again.
  void backward(const TokenChunk& chunk, const Forward& forward, const at::Tensor& grads, const at::Tensor& d_hidden_CH,
                const at::Tensor& d_weight_VH) const;

 private:
  static constexpr int64_t kKeptBytes = int64_t{512} << 20;

  [[nodiscard]] int64_t columns_from(int64_t first) const { return std::min(block_columns_, vocab_ - first); }

  const DeviceKernels* kernels_;
  VocabularyHead head_;
  int64_t vocab_, block_columns_;
  MortiseCudaHeadScale scale_;
};

}  // namespace mortise::by_operators
