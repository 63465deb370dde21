// See full_kl.h.
//
// A chunk of C tokens is worked on in two parallel phases over fixed blocks of the vocabulary:
//   forward   z and z - z_ref of the block; both normalisers, and sum exp(z) (z - z_ref), against the block's maximum
//   backward  z becomes d loss / d logits; d_hidden parts and d_W_b from two products
// KL = E_p[z - z_ref] / T - (lse - lse_ref): no log-softmax is written down, and equal logits give 0 exactly.
#include "model/head/full_kl.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "model/head/chunks.h"
#include "model/head/row_softmax.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

using blas::Trans;

constexpr int64_t kMaxChunkRows = 512;
constexpr int64_t kBlockColumns = 2048;  // summed in lanes of T before double
constexpr double kFloor = -1e4;          // of the exponent: exp is 0 there

// Memory of both heads' logits, and the parts of d_hidden.
int64_t row_elements(int64_t width, int64_t vocab) {
  return 2 * vocab + num_column_blocks(vocab, kBlockColumns) * width;
}

// other becomes z - other; *sum is that of exp((z - max) / temperature) (z - other).
template <class T>
MORTISE_INLINE void difference_body(const T* z, T* other, int64_t size, double max, double inverse_temperature,
                                    double* sum) {
  const T top = static_cast<T>(max);
  const T scale = static_cast<T>(inverse_temperature);
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < size; ++i) {
    T d = (z[i] - top) * scale;
    d = d < static_cast<T>(kFloor) ? static_cast<T>(kFloor) : d;
    const T difference = z[i] - other[i];
    other[i] = difference;
    total += fast_exp(d) * difference;
  }
  *sum = static_cast<double>(total);
}

// The numbers that make a row's gradient.
struct RowGrad {
  double max = 0;          // of the row's logits
  double inverse_sum = 0;  // of its normaliser
  double offset = 0;       // lse - lse_ref + KL
  double factor = 0;       // weight / temperature
  double inverse_temperature = 1;
  double cap = 0;
};

// z becomes factor p ((z - z_ref) / temperature - offset), of capped logits the gradient of what they were before.
template <class T>
MORTISE_INLINE void grad_body(T* z, const T* difference, int64_t size, const RowGrad& row) {
  const T top = static_cast<T>(row.max);
  const T scale = static_cast<T>(row.inverse_temperature);
  const T factor = static_cast<T>(row.inverse_sum * row.factor);
  const T offset = static_cast<T>(row.offset);
  const T inverse_cap = row.cap > 0.0 ? static_cast<T>(1.0 / row.cap) : T(0);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const T t = z[i] * inverse_cap;
    T d = (z[i] - top) * scale;
    d = d < static_cast<T>(kFloor) ? static_cast<T>(kFloor) : d;
    z[i] = fast_exp(d) * factor * (difference[i] * scale - offset) * (T(1) - t * t);
  }
}

MORTISE_CPU_CLONES void difference_clone(const float* z, float* other, int64_t n, double max, double t, double* sum) {
  difference_body(z, other, n, max, t, sum);
}
MORTISE_CPU_CLONES void difference_clone(const double* z, double* other, int64_t n, double max, double t, double* sum) {
  difference_body(z, other, n, max, t, sum);
}
MORTISE_CPU_CLONES void full_kl_grad_clone(float* z, const float* difference, int64_t n, const RowGrad& row) {
  grad_body(z, difference, n, row);
}
MORTISE_CPU_CLONES void full_kl_grad_clone(double* z, const double* difference, int64_t n, const RowGrad& row) {
  grad_body(z, difference, n, row);
}

// One side's view of raw memory.
template <class T>
struct Side {
  explicit Side(const HeadSide& side)
      : hidden(side.hidden_RH.const_data_ptr<T>()),
        weight(side.head.weight_VH.const_data_ptr<T>()),
        width(side.hidden_RH.size(1)),
        softcap(side.head.softcap) {}

  // Logits of the rows [begin, begin + rows) for the columns [first, first + n), rows apart by n.
  void logits(int64_t begin, int64_t rows, int64_t first, int64_t n, T* out) const {
    blas::gemm(Trans::kNo, Trans::kYes, rows, n, width, T(1), hidden + begin * width, width, weight + first * width,
               width, T(0), out, n);
    if (softcap > 0.0) row_softcap_(out, rows * n, softcap);
  }

  const T* hidden;
  const T* weight;
  int64_t width;
  double softcap;
};

// The statistics of a row over one block of columns, or over the whole vocabulary.
struct PairStats {
  RowStats policy, reference;
  double cross = 0;  // sum exp((z - policy.max) / temperature) (z - z_ref)

  [[nodiscard]] PairStats merged(const PairStats& other, double inverse_temperature) const {
    PairStats out{policy.merged(other.policy, inverse_temperature),
                  reference.merged(other.reference, inverse_temperature), 0};
    for (const PairStats* part : {this, &other}) {
      const double shift =
          part->policy.max == out.policy.max ? 0.0 : (part->policy.max - out.policy.max) * inverse_temperature;
      out.cross += part->cross * std::exp(std::max(shift, kFloor));
    }
    return out;
  }
  [[nodiscard]] double lse_gap(double inverse_temperature) const {
    return policy.lse(inverse_temperature) - reference.lse(inverse_temperature);
  }
  [[nodiscard]] double kl(double inverse_temperature) const {
    return cross / policy.sum * inverse_temperature - lse_gap(inverse_temperature);
  }
};

template <class T>
class FullKlPass {
 public:
  FullKlPass(const HeadSide& policy, const HeadSide& reference, double temperature, const HeadOptions& options)
      : policy_(policy),
        reference_(reference),
        inverse_temperature_(1.0 / temperature),
        vocab_(policy.head.weight_VH.size(0)),
        num_blocks_(num_column_blocks(vocab_, kBlockColumns)) {
    const int64_t row_bytes = row_elements(policy_.width, vocab_) * static_cast<int64_t>(sizeof(T));
    chunk_rows_ = head_chunk_rows(policy.hidden_RH.size(0), row_bytes, kMaxChunkRows, options);
    const auto rows = static_cast<size_t>(chunk_rows_);
    z_.reset(new T[rows * static_cast<size_t>(vocab_)]);
    difference_.reset(new T[rows * static_cast<size_t>(vocab_)]);
    block_stats_.resize(rows * static_cast<size_t>(num_blocks_));
    stats_.resize(rows);
  }

  [[nodiscard]] int64_t chunk_rows() const { return chunk_rows_; }

  // kl [rows of the chunk]
  void forward(int64_t begin, int64_t end, std::span<double> kl) {
    begin_ = begin;
    rows_ = end - begin;
    parallel_tasks<T>(num_blocks_, 0, [&](int64_t block, T*) { forward_block(block); });
    for (int64_t r = 0; r < rows_; ++r) {
      PairStats stats = at(0, r);
      for (int64_t block = 1; block < num_blocks_; ++block) stats = stats.merged(at(block, r), inverse_temperature_);
      stats_[static_cast<size_t>(r)] = stats;
      kl[static_cast<size_t>(r)] = stats.kl(inverse_temperature_);
    }
  }

  // For the chunk of the last forward. d_hidden and d_weight begin at their tensors' starts; either may be null.
  void backward(std::span<const double> weight, T* d_hidden, T* d_weight) {
    if (d_hidden != nullptr) partial_.resize(static_cast<size_t>(num_blocks_ * rows_ * policy_.width));
    parallel_tasks<T>(num_blocks_, 0,
                      [&](int64_t block, T*) { backward_block(block, weight, d_hidden != nullptr, d_weight); });
    if (d_hidden != nullptr) sum_parts(d_hidden + begin_ * policy_.width);
  }

 private:
  int64_t columns(int64_t block) const { return std::min(kBlockColumns, vocab_ - block * kBlockColumns); }
  PairStats& at(int64_t block, int64_t row) { return block_stats_[static_cast<size_t>(block * chunk_rows_ + row)]; }

  void forward_block(int64_t block) {
    const int64_t first = block * kBlockColumns;
    const int64_t n = columns(block);
    T* z = z_.get() + first * rows_;
    T* other = difference_.get() + first * rows_;
    policy_.logits(begin_, rows_, first, n, z);
    reference_.logits(begin_, rows_, first, n, other);
    for (int64_t r = 0; r < rows_; ++r) {
      PairStats& stats = at(block, r);
      stats.policy = row_softmax_stats(z + r * n, n, inverse_temperature_);
      stats.reference = row_softmax_stats(other + r * n, n, inverse_temperature_);
      difference_clone(z + r * n, other + r * n, n, stats.policy.max, inverse_temperature_, &stats.cross);
    }
  }

  void backward_block(int64_t block, std::span<const double> weight, bool want_hidden, T* d_weight) {
    const int64_t first = block * kBlockColumns;
    const int64_t n = columns(block);
    const int64_t width = policy_.width;
    T* z = z_.get() + first * rows_;
    const T* difference = difference_.get() + first * rows_;
    for (int64_t r = 0; r < rows_; ++r) {
      const double w = weight[static_cast<size_t>(r)];
      if (w == 0.0) {  // and not 0 times what may not be finite
        std::fill_n(z + r * n, n, T(0));
        continue;
      }
      const PairStats& stats = stats_[static_cast<size_t>(r)];
      RowGrad row;
      row.max = stats.policy.max;
      row.inverse_sum = 1.0 / stats.policy.sum;
      row.offset = stats.lse_gap(inverse_temperature_) + stats.kl(inverse_temperature_);
      row.factor = w * inverse_temperature_;
      row.inverse_temperature = inverse_temperature_;
      row.cap = policy_.softcap;
      full_kl_grad_clone(z + r * n, difference + r * n, n, row);
    }
    if (want_hidden) {
      blas::gemm(Trans::kNo, Trans::kNo, rows_, width, n, T(1), z, n, policy_.weight + first * width, width, T(0),
                 partial_.data() + block * rows_ * width, width);
    }
    if (d_weight != nullptr) {
      blas::gemm(Trans::kYes, Trans::kNo, n, width, rows_, T(1), z, n, policy_.hidden + begin_ * width, width, T(1),
                 d_weight + first * width, width);
    }
  }

  void sum_parts(T* out) const {
    const int64_t size = rows_ * policy_.width;
    std::copy_n(partial_.data(), size, out);
    for (int64_t block = 1; block < num_blocks_; ++block) {
      const T* part = partial_.data() + block * size;
      for (int64_t i = 0; i < size; ++i) out[i] += part[i];
    }
  }

  Side<T> policy_, reference_;
  double inverse_temperature_;
  int64_t vocab_;
  int64_t num_blocks_;
  int64_t chunk_rows_ = 0;
  int64_t begin_ = 0;
  int64_t rows_ = 0;
  std::unique_ptr<T[]> z_;              // [block][row][column of the block]
  std::unique_ptr<T[]> difference_;     // the same: z - z_ref
  std::vector<PairStats> block_stats_;  // [block][row]
  std::vector<PairStats> stats_;
  std::vector<T> partial_;  // [block][row][hidden]: parts of d_hidden
};

void check_sides(const HeadSide& policy, const HeadSide& reference, size_t num_weights, double temperature) {
  const int64_t num = policy.hidden_RH.size(0);
  for (const HeadSide* side : {&policy, &reference}) {
    const at::Tensor &hidden = side->hidden_RH, &weight = side->head.weight_VH;
    TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "full KL: shapes");
    TORCH_CHECK(hidden.is_contiguous() && weight.is_contiguous(), "full KL: not contiguous");
    TORCH_CHECK(hidden.scalar_type() == policy.hidden_RH.scalar_type() && weight.scalar_type() == hidden.scalar_type(),
                "full KL: dtypes differ");
  }
  TORCH_CHECK(reference.hidden_RH.size(0) == num && static_cast<int64_t>(num_weights) == num, "full KL: tokens");
  TORCH_CHECK(reference.head.weight_VH.size(0) == policy.head.weight_VH.size(0), "full KL: vocabularies differ");
  TORCH_CHECK(temperature > 0.0, "full KL: temperature");
}

}  // namespace

int64_t full_kl_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes,
                      const HeadOptions& options) {
  const int64_t row_bytes = row_elements(width, vocab) * element_bytes;
  return head_chunk_rows(num_rows, row_bytes, kMaxChunkRows, options) * row_bytes;
}

std::vector<double> head_full_kl(const HeadSide& policy, const HeadSide& reference, double temperature,
                                 std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                 const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const at::NoGradGuard no_grad;
  check_sides(policy, reference, weight_R.size(), temperature);
  TORCH_CHECK(
      !d_hidden_RH.defined() || (d_hidden_RH.is_contiguous() && d_hidden_RH.sizes() == policy.hidden_RH.sizes()),
      "full KL: d_hidden");
  TORCH_CHECK(
      !d_weight_VH.defined() || (d_weight_VH.is_contiguous() && d_weight_VH.sizes() == policy.head.weight_VH.sizes()),
      "full KL: d_weight");
  const int64_t num = policy.hidden_RH.size(0);
  std::vector<double> kl(weight_R.size());
  const bool want_grad = d_hidden_RH.defined() || d_weight_VH.defined();
  dispatch_float(policy.hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    FullKlPass<T> pass(policy, reference, temperature, options);
    for (int64_t begin = 0; begin < num; begin += pass.chunk_rows()) {
      const int64_t end = std::min(num, begin + pass.chunk_rows());
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      pass.forward(begin, end, std::span(kl).subspan(first, count));
      const std::span<const double> weight = weight_R.subspan(first, count);
      if (want_grad && any_nonzero(weight)) {
        pass.backward(weight, data_or_null<T>(d_hidden_RH), data_or_null<T>(d_weight_VH));
      } else if (d_hidden_RH.defined()) {
        d_hidden_RH.narrow(0, begin, end - begin).zero_();
      }
    }
  });
  return kl;
}

}  // namespace mortise
