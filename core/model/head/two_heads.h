// What the passes over the vocabulary of two heads share: the logits of both for a chunk of tokens, in blocks of columns,
// and the products that carry a gradient by the policy's logits back. Private to this folder.
//
// A pass derives from TwoHeads. It has
//   forward(begin, end, values)          computes the logits of a chunk, and the values of its tokens
//   gradient_of_row(block, row, weight)  turns a row of z into d loss / d logits
// and for heads that are read in windows
//   num_walks()       walks over all windows before gradients
//   add_window(walk)  computes the chunk's logits of the window, and adds what this walk sums up
//   end_walk(walk)    for a chunk, when the walk is over
//   value(token)      after all of them
//   compute_again()   computes the chunk's logits of the window for its gradients
// Windows begin where blocks begin, and chunks of tokens are those of whole heads, so that all numbers have the same bits.
//
// Cost of windows: a walk over both heads, or over that which is spread, for each of num_walks(), and one for gradients. Each
// computes the logits. Memory: a chunk's logits of a window. Thread rule: one call at a time; rows of different blocks may be
// worked on at the same time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/head/chunks.h"
#include "model/head/full_kl.h"
#include "model/head/row_softmax.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"

namespace mortise {

inline constexpr int64_t kPairChunkRows = 512;
inline constexpr int64_t kPairBlockColumns = 2048;  // summed in lanes of T before double
static_assert(kHeadWindowRows % kPairBlockColumns == 0);

// Memory of one token of a chunk, and of a chunk: both heads' logits, and the parts of d_hidden.
int64_t two_heads_row_bytes(int64_t width, int64_t vocab, int64_t element_bytes);
// A chunk of some columns has as many tokens as one of all.
int64_t two_heads_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes, int64_t columns,
                        const HeadOptions& options);

// Walks over two heads, of which at least one is read in windows. If both are, `other` is the policy's partner. Of a shared
// vocabulary each rank walks over its own rows. Passes join their sums behind a walk.
class PairWalks {
 public:
  // Borrows both. `d_weight_VH`: of a whole policy; may be undefined.
  PairWalks(const HeadSide& policy, const HeadSide& other, at::Tensor d_weight_VH)
      : policy_(&policy.head), other_(&other.head), d_weight_VH_(std::move(d_weight_VH)) {}

  using Use = SpreadRows::UsePairBack;
  void walk(const Use& use) const;
  void walk_back(const Use& use) const;

 private:
  // The rows of a window that the heads have (shared_vocabulary.h).
  [[nodiscard]] Use of_used_rows(const Use& use) const;
  const VocabularyHead *policy_, *other_;
  at::Tensor d_weight_VH_;
};

inline bool reads_windows(const HeadSide& policy, const HeadSide& other) {
  return policy.head.rows != nullptr || other.head.rows != nullptr;
}

// Throws if shapes or dtypes do not fit together.
void check_two_heads(const HeadSide& policy, const HeadSide& other, size_t num_weights, double temperature,
                     const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH);

// One side's view of raw memory.
template <class T>
struct PairedHead {
  explicit PairedHead(const HeadSide& side)
      : hidden(side.hidden_RH.const_data_ptr<T>()),
        weight(side.head.rows == nullptr ? side.head.weight_VH.const_data_ptr<T>() : nullptr),
        width(side.hidden_RH.size(1)),
        softcap(side.head.softcap) {}

  // Logits of the rows [begin, begin + rows) for the columns [first, first + n), rows apart by n.
  void logits(int64_t begin, int64_t rows, int64_t first, int64_t n, T* out) const {
    blas::gemm(blas::Trans::kNo, blas::Trans::kYes, rows, n, width, T(1), hidden + begin * width, width,
               weight + first * width, width, T(0), out, n);
    if (softcap > 0.0) row_softcap_(out, rows * n, softcap);
  }

  const T* hidden;
  const T* weight;
  int64_t width;
  double softcap;
};

template <class T>
class TwoHeads {
 public:
  TwoHeads(const HeadSide& policy, const HeadSide& other, double temperature, const HeadOptions& options)
      : policy_(policy),
        other_side_(other),
        inverse_temperature_(1.0 / temperature),
        share_(policy.head.share),
        num_tokens_(policy.hidden_RH.size(0)) {
    const int64_t vocab = policy.head.weight_VH.size(0);
    // All ranks that share the vocabulary have chunks of the same tokens.
    const int64_t most = share_ != nullptr ? share_->most : vocab;
    const int64_t row_bytes = two_heads_row_bytes(policy_.width, most, sizeof(T));
    chunk_rows_ = head_chunk_rows(num_tokens_, row_bytes, kPairChunkRows, options);
    if (!reads_windows(policy, other)) set_columns(0, vocab);
  }

  // The rows [first, first + n) of both heads, until the next call.
  void use_window(int64_t first, const at::Tensor& rows, const at::Tensor& other_rows) {
    policy_.weight = rows.const_data_ptr<T>();
    other_side_.weight = other_rows.const_data_ptr<T>();
    set_columns(first, rows.size(0));
  }
  [[nodiscard]] bool is_first_window() const { return first_column_ == 0; }

  [[nodiscard]] int64_t num_tokens() const { return num_tokens_; }
  [[nodiscard]] size_t token(int64_t row) const { return static_cast<size_t>(begin_ + row); }
  [[nodiscard]] int64_t chunk_rows() const { return chunk_rows_; }
  [[nodiscard]] int64_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] int64_t rows() const { return rows_; }  // rows in the current chunk
  [[nodiscard]] int64_t columns(int64_t block) const {
    return std::min(kPairBlockColumns, num_columns_ - block * kPairBlockColumns);
  }
  // The first one of the window in the whole head.
  [[nodiscard]] int64_t first_column() const { return first_column_; }
  [[nodiscard]] bool has_column(int64_t column) const {
    return column >= first_column_ && column < first_column_ + num_columns_;
  }
  [[nodiscard]] double inverse_temperature() const { return inverse_temperature_; }
  [[nodiscard]] const PairedHead<T>& policy() const { return policy_; }
  // Null: the heads are whole. Else both have this rank's rows.
  [[nodiscard]] const VocabularyShare* share() const { return share_.get(); }
  // A row of a block: the policy's logits, and the other side's or what a pass makes of them.
  [[nodiscard]] T* z(int64_t block, int64_t row) const { return z_.get() + place(block, row); }
  [[nodiscard]] T* other(int64_t block, int64_t row) const { return other_.get() + place(block, row); }

  void start(int64_t begin, int64_t end) {
    begin_ = begin;
    rows_ = end - begin;
  }
  void compute_logits(int64_t block) {
    const int64_t first = block * kPairBlockColumns;
    policy_.logits(begin_, rows_, first, columns(block), z(block, 0));
    other_side_.logits(begin_, rows_, first, columns(block), other(block, 0));
  }

  // For the chunk whose logits were computed last. `gradient` is called as gradient_of_row. d_hidden and d_weight begin
  // at the starts of their tensors, or of the window; either may be null. Windows add to d_hidden.
  template <class Gradient>
  void backward(std::span<const double> weight, T* d_hidden, T* d_weight, const Gradient& gradient) {
    if (d_hidden != nullptr) partial_.resize(static_cast<size_t>(num_blocks_ * rows_ * policy_.width));
    parallel_tasks<T>(num_blocks_, 0, [&](int64_t block, T*) {
      for (int64_t r = 0; r < rows_; ++r) {
        const double w = weight[static_cast<size_t>(r)];
        if (w != 0.0)
          gradient(block, r, w);
        else  // and not 0 times what may not be finite
          std::fill_n(z(block, r), columns(block), T(0));
      }
      products(block, d_hidden != nullptr, d_weight);
    });
    if (d_hidden != nullptr) sum_parts(d_hidden + begin_ * policy_.width);
  }

 private:
  [[nodiscard]] int64_t place(int64_t block, int64_t row) const {
    return block * kPairBlockColumns * rows_ + row * columns(block);
  }

  void products(int64_t block, bool want_hidden, T* d_weight) {
    using blas::Trans;
    const int64_t first = block * kPairBlockColumns, n = columns(block), width = policy_.width;
    if (want_hidden) {
      blas::gemm(Trans::kNo, Trans::kNo, rows_, width, n, T(1), z(block, 0), n, policy_.weight + first * width, width,
                 T(0), partial_.data() + block * rows_ * width, width);
    }
    if (d_weight != nullptr) {
      blas::gemm(Trans::kYes, Trans::kNo, n, width, rows_, T(1), z(block, 0), n, policy_.hidden + begin_ * width, width,
                 T(1), d_weight + first * width, width);
    }
  }

  void set_columns(int64_t first, int64_t count) {
    first_column_ = first;
    num_columns_ = count;
    num_blocks_ = num_column_blocks(count, kPairBlockColumns);
    if (count <= columns_in_memory_) return;
    columns_in_memory_ = count;
    const auto size = static_cast<size_t>(chunk_rows_) * static_cast<size_t>(count);
    for (auto* logits : {&z_, &other_}) logits->reset(new T[size]);
  }

  void sum_parts(T* out) const {
    const int64_t size = rows_ * policy_.width;
    if (is_first_window()) std::copy_n(partial_.data(), size, out);
    for (int64_t block = is_first_window() ? 1 : 0; block < num_blocks_; ++block) {
      const T* part = partial_.data() + block * size;
      for (int64_t i = 0; i < size; ++i) out[i] += part[i];
    }
  }

  PairedHead<T> policy_, other_side_;
  double inverse_temperature_;
  std::shared_ptr<const VocabularyShare> share_;
  int64_t num_tokens_;
  int64_t first_column_ = 0, num_columns_ = 0, columns_in_memory_ = 0;  // the window's, or all
  int64_t num_blocks_ = 0;
  int64_t chunk_rows_ = 0;
  int64_t begin_ = 0;
  int64_t rows_ = 0;
  std::unique_ptr<T[]> z_, other_;  // [block][row][column of the block]
  std::vector<T> partial_;          // [block][row][hidden]: parts of d_hidden
};

// All tokens through `pass`, chunk by chunk: values [R], and the gradients of sum_r weight_R[r] values[r].
template <class T, class Pass>
void run_two_heads(Pass& pass, int64_t num, std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                   const at::Tensor& d_weight_VH, std::span<double> values) {
  const at::NoGradGuard no_grad;
  const bool want_grad = d_hidden_RH.defined() || d_weight_VH.defined();
  const auto gradient = [&](int64_t block, int64_t row, double weight) { pass.gradient_of_row(block, row, weight); };
  for (int64_t begin = 0; begin < num; begin += pass.chunk_rows()) {
    const int64_t end = std::min(num, begin + pass.chunk_rows());
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    pass.forward(begin, end, values.subspan(first, count));
    const std::span<const double> weight = weight_R.subspan(first, count);
    if (want_grad && any_nonzero(weight)) {
      pass.backward(weight, data_or_null<T>(d_hidden_RH), data_or_null<T>(d_weight_VH), gradient);
    } else if (d_hidden_RH.defined()) {
      d_hidden_RH.narrow(0, begin, end - begin).zero_();
    }
  }
}

// The same for heads that are read in windows.
template <class T, class Pass>
void run_two_heads_by_windows(Pass& pass, const PairWalks& walks, std::span<const double> weight_R,
                              const at::Tensor& d_hidden_RH, std::span<double> values) {
  const at::NoGradGuard no_grad;
  const int64_t num = pass.num_tokens();
  const auto for_chunks = [&](const auto& work) {
    for (int64_t begin = 0; begin < num; begin += pass.chunk_rows()) {
      pass.start(begin, std::min(num, begin + pass.chunk_rows()));
      work(weight_R.subspan(pass.token(0), static_cast<size_t>(pass.rows())));
    }
  };
  for (int walk = 0; walk < pass.num_walks(); ++walk) {
    walks.walk([&](int64_t first, const at::Tensor& rows, const at::Tensor& other_rows, const at::Tensor&) {
      pass.use_window(first, rows, other_rows);
      for_chunks([&](std::span<const double>) { pass.add_window(walk); });
    });
    for_chunks([&](std::span<const double>) { pass.end_walk(walk); });
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] = pass.value(i);
  if (d_hidden_RH.defined()) d_hidden_RH.zero_();
  if (!d_hidden_RH.defined() || !any_nonzero(weight_R)) return;
  const auto gradient = [&](int64_t block, int64_t row, double weight) { pass.gradient_of_row(block, row, weight); };
  walks.walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& other_rows, const at::Tensor& d_rows) {
    pass.use_window(first, rows, other_rows);
    for_chunks([&](std::span<const double> weight) {
      if (!any_nonzero(weight)) return;
      pass.compute_again();
      pass.backward(weight, d_hidden_RH.mutable_data_ptr<T>(), data_or_null<T>(d_rows), gradient);
    });
  });
}

}  // namespace mortise
