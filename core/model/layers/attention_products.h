// The products of attention with the keys and values of one head, for one segment of a packed batch.
//
// A segment sees the rows of its prefix and then its own: one matrix [count, dim]. The matrix is copied once, into the
// panels of the float32 kernels (model/tensor/f32_kernels.h). Several heads may share these keys and values; all their
// blocks of queries read this copy.
// Where those kernels do not serve (float64, an old CPU, long heads) BLAS reads the rows.
// A number's sum is cut at fixed places of the segment, so it depends neither on blocks of queries nor on threads.
// Thread rule: functions on the caller's memory, which no other thread uses meanwhile.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "model/layers/attention_kernels.h"
#include "model/tensor/blas.h"
#include "model/tensor/f32_gemm.h"
#include "model/tensor/kernel.h"

namespace mortise {

inline constexpr int64_t kLongestBlock = 128;  // queries

// Rows of scores begin at whole vectors.
inline int64_t score_stride(int64_t width) { return ceil_div(width, kScoreLanes) * kScoreLanes; }

// Rows of a head, `stride` numbers apart.
template <class T>
struct HeadRows {
  const T* data = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t dim = 0;
};

// The kernels for products of heads of this size; null: BLAS.
template <class T>
const F32Kernels* head_kernels(int64_t dim) {
  if constexpr (std::is_same_v<T, float>) return dim <= kF32BlockK ? find_f32_kernels() : nullptr;
  return nullptr;
}

// Numbers of memory that a layout of so many rows takes.
constexpr int64_t laid_size(int64_t count, int64_t dim) {
  return ceil_div(count, kF32Columns) * kF32Columns * ceil_div(dim, kF32Columns) * kF32Columns;
}

// A thread's scratch memory for one segment and one key-value head. Keys and values are laid out for products with rows
// of queries (columns) and with rows of scores (terms). Blocks of scores have queries as rows. Rows of keys or values are
// there before they are laid out.
template <class T>
struct AttentionScratch {
  T *key_columns, *value_terms, *scores;
  T *key_terms = nullptr, *value_columns = nullptr, *dp = nullptr;  // backward
  T *dkeys = nullptr, *dvalues = nullptr, *side = nullptr;

  AttentionScratch(T* memory, int64_t longest_row, int64_t dim, bool is_backward) {
    T* next = memory;
    const auto take = [&](int64_t size) { return std::exchange(next, next + size); };
    const int64_t laid = laid_size(longest_row, dim), block = block_size(longest_row, dim);
    key_columns = take(laid);
    value_terms = take(laid);
    scores = take(block);
    if (!is_backward) return;
    key_terms = take(laid);
    value_columns = std::exchange(value_terms, nullptr);
    dp = take(block);
    dkeys = take(longest_row * dim);
    dvalues = take(longest_row * dim);
    side = take(laid_size(kLongestBlock, dim));
  }
  // Numbers of memory.
  static int64_t size(int64_t longest_row, int64_t dim, bool is_backward) {
    const int64_t laid = laid_size(longest_row, dim), block = block_size(longest_row, dim);
    if (!is_backward) return 2 * laid + block;
    return 3 * laid + 2 * block + 2 * longest_row * dim + laid_size(kLongestBlock, dim);
  }

 private:
  static int64_t block_size(int64_t longest_row, int64_t dim) {
    return std::max(kLongestBlock, dim) * score_stride(longest_row);
  }
};

// left [m, dim] x rows^T: each row is a column of the right operand.
template <class T>
class HeadColumns {
 public:
  // `memory`: laid_size() numbers. It and `rows` must live as long.
  HeadColumns(const F32Kernels* kernels, const HeadRows<T>& rows, T* memory)
      : kernels_(kernels), rows_(rows), panels_(memory) {
    if constexpr (std::is_same_v<T, float>) {
      if (kernels_ == nullptr) return;
      const F32Operand from{rows.data, rows.stride, true};
      for (int64_t j = 0; j < rows.count; j += kF32Columns)
        kernels_->pack(from, j, std::min(kF32Columns, rows.count - j), 0, rows.dim, memory + j * rows.dim);
    }
  }

  // out [m, end - begin] = alpha left x rows [begin, end)^T. `begin` is a multiple of kF32Columns.
  void multiply(int64_t begin, int64_t end, int64_t m, T alpha, const T* left, int64_t left_stride, T* out,
                int64_t out_stride) const {
    if constexpr (std::is_same_v<T, float>) {
      if (kernels_ != nullptr) {
        constexpr int64_t kBlock = 16 * kF32Columns;  // panels that stay in the second cache
        for (int64_t j = begin; j < end; j += kBlock)
          kernels_->multiply({left, left_stride, true}, panels_ + j * rows_.dim, m, std::min(kBlock, end - j),
                             rows_.dim, alpha, out + j - begin, out_stride, false);
        return;
      }
    }
    blas::gemm(blas::Trans::kNo, blas::Trans::kYes, m, end - begin, rows_.dim, alpha, left, left_stride,
               rows_.data + begin * rows_.stride, rows_.stride, T(0), out, out_stride);
  }

 private:
  const F32Kernels* kernels_;
  HeadRows<T> rows_;
  const T* panels_;
};

// left [m, count] x rows: each row is a term of the sums.
template <class T>
class HeadTerms {
 public:
  HeadTerms(const F32Kernels* kernels, const HeadRows<T>& rows, T* memory)
      : kernels_(kernels), rows_(rows), panels_(memory) {
    if constexpr (std::is_same_v<T, float>) {
      if (kernels_ == nullptr) return;
      const F32Operand from{rows.data, rows.stride, false};
      for (int64_t first = 0; first < rows.count; first += kF32BlockK) {
        for (int64_t j = 0; j < rows.dim; j += kF32Columns)
          kernels_->pack(from, j, std::min(kF32Columns, rows.dim - j), first, block_size(first),
                         memory + place(first, j));
      }
    }
  }

  // out [m, dim] = alpha left [m, end - begin] x rows [begin, end)
  void multiply(int64_t begin, int64_t end, int64_t m, T alpha, const T* left, int64_t left_stride, T* out,
                int64_t out_stride) const {
    if constexpr (std::is_same_v<T, float>) {
      if (kernels_ != nullptr) return multiply_panels(begin, end, m, alpha, left, left_stride, out, out_stride);
    }
    blas::gemm(blas::Trans::kNo, blas::Trans::kNo, m, rows_.dim, end - begin, alpha, left, left_stride,
               rows_.data + begin * rows_.stride, rows_.stride, T(0), out, out_stride);
  }

 private:
  // Rows of the block of terms that begins at `first`.
  [[nodiscard]] int64_t block_size(int64_t first) const { return std::min(kF32BlockK, rows_.count - first); }
  // Where the panel of the columns from j on begins, in the block of terms that begins at `first`.
  [[nodiscard]] int64_t place(int64_t first, int64_t j) const {
    return first * ceil_div(rows_.dim, kF32Columns) * kF32Columns + j * block_size(first);
  }

  void multiply_panels(int64_t begin, int64_t end, int64_t m, float alpha, const float* left, int64_t left_stride,
                       float* out, int64_t out_stride) const {
    for (int64_t from = begin, to = 0; from < end; from = to) {
      const int64_t block = from / kF32BlockK * kF32BlockK;
      to = std::min(end, block + kF32BlockK);
      for (int64_t j = 0; j < rows_.dim; j += kF32Columns)
        kernels_->multiply({left + from - begin, left_stride, true},
                           panels_ + place(block, j) + (from - block) * kF32Columns, m,
                           std::min(kF32Columns, rows_.dim - j), to - from, alpha, out + j, out_stride, from > begin);
    }
  }

  const F32Kernels* kernels_;
  HeadRows<T> rows_;
  const T* panels_;
};

// out [columns of left, dim] += alpha left [m, columns]^T x rows, m = rows.count at most kF32BlockK. `memory`: laid_size()
// numbers.
template <class T>
void add_transposed_product(const F32Kernels* kernels, const HeadRows<T>& rows, int64_t columns, T alpha, const T* left,
                            int64_t left_stride, T* memory, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    if (kernels != nullptr) {
      f32_transposed_product(*kernels, columns, rows.dim, rows.count, left, left_stride, rows.data, rows.stride, alpha,
                             memory, out, /*add=*/true);
      return;
    }
  }
  blas::gemm(blas::Trans::kYes, blas::Trans::kNo, columns, rows.dim, rows.count, alpha, left, left_stride, rows.data,
             rows.stride, T(1), out, rows.dim);
}

}  // namespace mortise
