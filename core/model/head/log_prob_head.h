// The fused head: hidden states to log-probs and entropies of given tokens, and their gradients, in chunks of tokens
// and blocks of the vocabulary, so that tokens x vocabulary is never held. Every gradient of training enters the model
// here.
//
// Shapes: R tokens, H hidden, V vocabulary. hidden_RH and the weight are contiguous, of one dtype (float or double);
// targets_R is int64 in [0, V) (the batch builder checked it). log_prob and entropy come as tensors of that dtype.
// Cost: head_log_prob 2RHV flops; head_backward and head_one_pass 6RHV (the former recomputes the logits), one exp
// per logit (a capped head one more). Memory: one chunk (HeadOptions). The results do not depend on the number of
// threads (blocks have fixed sizes and are summed in order). No autograd inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/layers/spread_rows.h"
#include "model/layers/tensor_ranks.h"

namespace mortise {

struct HeadOptions {
  // Memory of a chunk of tokens: the kept logits, and the parts of d_hidden by block of the vocabulary. A chunk has as
  // many tokens as fit, at most 512 (1,024 if norms are given), so that it is the same for every vocabulary that does
  // not fit whole. It has at least 64 tokens, whatever this says (that is what fits at 152k columns with all their
  // logits). With fewer, reading and writing the weight's gradient for each chunk costs more than the products.
  int64_t chunk_bytes = int64_t{56} << 20;
  // > 0: backward passes a whole weight that is larger in windows of so many bytes, as ranks do that share its rows (ZeRO 3).
  // Gradients by log-probs then have the bits of theirs. Ignored on devices.
  int64_t window_bytes = 0;
};

// The head of a model: logits = weight_VH hidden, and where softcap > 0 capped to softcap tanh(logit / softcap).
struct VocabularyHead {
  VocabularyHead(at::Tensor weight, double cap = 0.0)  // NOLINT(google-explicit-constructor): most heads are a matrix
      : weight_VH(std::move(weight)), softcap(cap) {}
  at::Tensor weight_VH;
  double softcap = 0.0;
  bool by_operators = false;  // by ATen operations on the weight's device (operator_head.h), not by the CPU kernels
  // Products by ATen operations take bfloat16 matrices: hidden states, the weight and the gradients of logits are rounded. Logits
  // and gradients stay float32 (head_products.h).
  bool rounds = false;
  at::Tensor rounded_VH = {};  // the rounded weight; a pass makes one of its own if it is undefined
  // Not null: the weight, and d_weight_VH, have this rank's rows alone. Targets are tokens of the whole vocabulary. A pass is
  // then a collective of the ranks that share the vocabulary. All of them give the same hidden states, targets and gradients by
  // log-probs, and get the same bits of all but d_weight_VH. Whoever runs it asks for the ranks' status().
  std::shared_ptr<const VocabularyShare> share = {};
  // Not null: the weight has a shape but no memory, and a pass walks over its rows (head_windows.h): one walk for log-probs, one
  // for gradients. The gradient of the weight goes to its owners, and d_weight_VH is not used. Log-probs have the bits of a whole
  // weight. CPU only.
  SpreadRows* rows = nullptr;
};

// Windows of rows begin at multiples of this, so that no window cuts a block of columns.
inline constexpr int64_t kHeadWindowRows = 2048;
// Rows of a window of at most so many bytes, or of the smallest one.
[[nodiscard]] constexpr int64_t rows_of_window(int64_t window_bytes, int64_t row_bytes) {
  const int64_t blocks = window_bytes / row_bytes / kHeadWindowRows;
  return (blocks > 1 ? blocks : 1) * kHeadWindowRows;
}

// All that a second look at a token's distribution needs of the first.
struct TokenNorm {
  double lse = 0.0;  // log sum exp of logit / temperature
  double entropy = 0.0;
};

struct LogProbs {
  at::Tensor log_prob_R{};
  at::Tensor entropy_R{};            // undefined unless requested
  std::vector<TokenNorm> norms_R{};  // for head_log_prob only
};

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options = {});

// Writes d_hidden_RH and adds to d_weight_VH. Either may be undefined if it is not needed. grad_entropy_R may be
// undefined. `norms_R` are those of head_log_prob on the same hidden states, weight and temperature. With them the pass
// takes far larger chunks (second_pass.h). Without them the pass computes them.
void head_backward(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, const at::Tensor& grad_log_prob_R, const at::Tensor& grad_entropy_R,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH,
                   std::span<const TokenNorm> norms_R = {}, const HeadOptions& options = {});

enum class EntropyUse {
  kNone,
  kValue,     // reported
  kGradient,  // reported, and the loss depends on it: costs a second exp per logit
};

// A chunk [begin, end) of the R tokens in one-pass mode, in double for any dtype of the weights.
struct HeadChunk {
  int64_t begin = 0;
  int64_t end = 0;
  std::span<const double> log_prob;
  std::span<const double> entropy;  // empty with kNone
  std::span<double> grad_log_prob;  // out, prefilled 0
  std::span<double> grad_entropy;   // out, prefilled 0; empty unless kGradient
};

// For token-local losses. `on_chunk` turns log-probs into gradients while the chunk's logits are in memory. The calls
// are in order of begin, on the calling thread. Writes d_hidden_RH and adds to d_weight_VH (either may be undefined).
void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, EntropyUse entropy, const std::function<void(const HeadChunk&)>& on_chunk,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, const HeadOptions& options = {});

// Bytes of a pass's chunk for so many tokens, in addition to its inputs and outputs. The two-pass mode takes at most
// that.
int64_t head_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes,
                   const HeadOptions& options = {});

// [R, V], for tools that want the logits themselves.
at::Tensor head_logits(const at::Tensor& hidden_RH, const VocabularyHead& head);

// The reference implementation: ATen operations with autograd over all logits at once.
LogProbs head_log_prob_plain(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                             double temperature);

}  // namespace mortise
