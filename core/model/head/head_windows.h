// The passes of a head whose rows come window by window (VocabularyHead::rows), so that no rank has the whole head or its
// gradient (ZeRO 3). A whole head can be passed through in the same windows (HeadOptions::window_bytes), which gives the same
// bits. Private to this folder, except for kTokensOfGradient: log_prob_head.h calls it.
//
// Forward adds each window's maxima and sums to those of the windows before it, in the order of the blocks of columns, so that
// log-probs have the bits of a whole head, which is one window. Gradients are those of second_pass.h, window by window. They
// are equal to rounding. If ranks share the vocabulary, each walks over the windows of its own rows. They join their sums behind
// the walk (shared_vocabulary.h).
//
// Cost for R tokens: log-probs 2RHV flops and one walk. A loss local to a token takes 8RHV flops instead of 6RHV, and two walks,
// because its logits are gone when gradients are computed. Threads share a window's blocks of columns: 2,048 of a forward pass,
// 1,024 of gradients. Memory: one window and, for gradients, another one; 32 bytes for each
// token; for gradients those of 8,192 hidden states.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "model/head/log_prob_head.h"
#include "model/head/row_softmax.h"
#include "model/head/second_pass.h"

namespace mortise {

// What windows add up for a token.
struct WindowSum {
  RowStats stats = {};
  double target_logit = 0.0;
};

// The rows [first, first + n) of a head. Targets elsewhere are in no window but their own.
inline bool is_window(const VocabularyHead& head) { return head.share != nullptr && head.share->ranks == nullptr; }

// Adds the columns of `window` for each token; log_prob_head.cpp.
void add_window_sums(const at::Tensor& hidden_RH, const VocabularyHead& window, const at::Tensor& targets_R,
                     double temperature, std::span<WindowSum> sums, const HeadOptions& options);

namespace by_windows {

// Tokens whose gradients of a window are in memory before they are added to d_hidden_RH.
inline constexpr int64_t kTokensOfGradient = 8192;

// The rows of a whole head, and of its gradient, which may be undefined. Back they come in windows, forward all at once: more
// blocks of columns keep more threads busy.
class WholeRows : public RowWindows {
 public:
  WholeRows(const VocabularyHead& head, const at::Tensor& d_weight_VH, int64_t window_bytes)
      : weight_VH_(head.weight_VH), d_weight_VH_(d_weight_VH), window_bytes_(window_bytes) {}
  void walk(const Use& use) override;
  void walk_back(const UseBack& use) override;

 private:
  at::Tensor weight_VH_, d_weight_VH_;
  int64_t window_bytes_;
};

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options);

// Without norms they are computed. `rows`: of the head.
void head_backward(const SecondPassInput& input, RowWindows& rows, const at::Tensor& d_hidden_RH,
                   const HeadOptions& options);

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, RowWindows& rows,
                   const at::Tensor& targets_R, double temperature, EntropyUse entropy,
                   const std::function<void(const HeadChunk&)>& on_chunk, const at::Tensor& d_hidden_RH,
                   const HeadOptions& options);

}  // namespace by_windows
}  // namespace mortise
