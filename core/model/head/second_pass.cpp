// See second_pass.h.
//
// A chunk of tokens goes over the vocabulary in waves of blocks of columns. In a wave
//   blocks   logits = hidden W_b^T; in the cache, E = exp((logit - m) / T) with m = T lse; d_W_b += E^T (f hidden)
//   slices   d_hidden += E W of the wave, in slices of rows and columns
// with f = -g exp(m / T - lse) / T per token, about -g / T (m is lse rounded to the dtype). d_hidden takes its f, and
// both take the target's own +g / T, at the end. Where the loss depends on the entropy, or the logits are capped, E is
// the gradient itself and f is 1.
#include "model/head/second_pass.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "model/head/chunks.h"
#include "model/head/row_softmax.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/target_term.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using blas::Trans;

constexpr int64_t kBlockColumns = 1024;
static_assert(kHeadWindowRows % kBlockColumns == 0);
constexpr int64_t kMaxChunkRows = 1024;
constexpr int64_t kWaveBlocks = 8;  // waves are cut to multiples of it: workers then end together
constexpr int64_t kSliceRows = 256;
constexpr int64_t kSliceColumns = 512;
constexpr int64_t kPadding = 16;  // rows a power of two apart would share a few sets of the cache

template <class T>
class SecondPass {
 public:
  SecondPass(const SecondPassInput& input, const HeadOptions& options)
      : in_(input),
        hidden_(input.hidden_RH.const_data_ptr<T>()),
        weight_(input.head.weight_VH.const_data_ptr<T>()),
        targets_(input.targets_R.const_data_ptr<int64_t>()),
        softcap_(input.head.softcap),
        inverse_temperature_(1.0 / input.temperature),
        exp_only_(input.grad_entropy.empty() && softcap_ <= 0.0),
        width_(input.hidden_RH.size(1)),
        vocab_(input.head.weight_VH.size(0)) {
    const int64_t budget = options.chunk_bytes / static_cast<int64_t>(sizeof(T));
    const int64_t row_bytes = (kWaveBlocks / 2 * kBlockColumns + width_) * static_cast<int64_t>(sizeof(T));
    chunk_rows_ = head_chunk_rows(input.hidden_RH.size(0), row_bytes, kMaxChunkRows, options);
    int64_t blocks = std::max<int64_t>(1, (budget / chunk_rows_ - width_ - kPadding) / kBlockColumns);
    if (blocks > kWaveBlocks) blocks -= blocks % kWaveBlocks;
    wave_columns_ = std::min(vocab_, blocks * kBlockColumns);
    stride_ = wave_columns_ + kPadding;
    const auto rows = static_cast<size_t>(chunk_rows_);
    wave_.reset(new T[rows * static_cast<size_t>(stride_)]);
    if (exp_only_) scaled_hidden_.reset(new T[rows * static_cast<size_t>(width_)]);
    stats_.resize(rows);
    factors_.resize(rows);
    target_logits_.resize(rows);
  }

  // Either pointer may be null.
  void run(T* d_hidden, T* d_weight) {
    const int64_t num = in_.hidden_RH.size(0);
    for (begin_ = 0; begin_ < num; begin_ += rows_) {
      rows_ = std::min(chunk_rows_, num - begin_);
      T* const d_rows = d_hidden == nullptr ? nullptr : d_hidden + begin_ * width_;
      if (!any_nonzero(of_chunk(in_.grad_log_prob)) && !any_nonzero(of_chunk(in_.grad_entropy))) {
        if (d_rows != nullptr) std::fill_n(d_rows, rows_ * width_, T(0));
        continue;
      }
      prepare_rows(d_weight != nullptr);
      for (wave_begin_ = 0; wave_begin_ < vocab_; wave_begin_ += wave_columns_) {
        columns_ = std::min(wave_columns_, vocab_ - wave_begin_);
        parallel_tasks<T>(ceil_div(columns_, kBlockColumns), 0,
                          [&](int64_t block, T*) { work_block(block, d_weight); });
        if (d_rows != nullptr) add_wave(d_rows);
      }
      finish_rows(d_rows, d_weight);
    }
  }

 private:
  size_t token(int64_t row) const { return static_cast<size_t>(begin_ + row); }
  std::span<const double> of_chunk(std::span<const double> grad) const {
    return grad.empty() ? grad : grad.subspan(token(0), static_cast<size_t>(rows_));
  }

  void prepare_rows(bool want_scaled) {
    for (int64_t r = 0; r < rows_; ++r) {
      const auto i = static_cast<size_t>(r);
      const TokenNorm& norm = in_.norms[token(r)];
      RowStats& stats = stats_[i];
      stats.max = static_cast<double>(static_cast<T>(norm.lse / inverse_temperature_));
      const double log_sum = norm.lse - stats.max * inverse_temperature_;
      stats.sum = std::exp(log_sum);
      stats.weighted = (log_sum - norm.entropy) * stats.sum;
      factors_[i] = exp_only_ ? static_cast<T>(-in_.grad_log_prob[token(r)] * inverse_temperature_ / stats.sum) : T(1);
      if (!exp_only_ || !want_scaled) continue;
      const T* from = hidden_ + (begin_ + r) * width_;
      T* to = scaled_hidden_.get() + r * width_;
      for (int64_t k = 0; k < width_; ++k) to[k] = factors_[i] * from[k];
    }
  }

  void work_block(int64_t block, T* d_weight) {
    const int64_t offset = block * kBlockColumns;
    const int64_t first = wave_begin_ + offset;
    const int64_t n = std::min(kBlockColumns, columns_ - offset);
    T* const out = wave_.get() + offset;
    blas::gemm(Trans::kNo, Trans::kYes, rows_, n, width_, T(1), hidden_ + begin_ * width_, width_,
               weight_ + first * width_, width_, T(0), out, stride_);
    for (int64_t r = 0; r < rows_; ++r) logits_to_gradient(out + r * stride_, r, first, n);
    if (d_weight == nullptr) return;
    const T* const right = exp_only_ ? scaled_hidden_.get() : hidden_ + begin_ * width_;
    blas::gemm(Trans::kYes, Trans::kNo, n, width_, rows_, T(1), out, stride_, right, width_, T(1),
               d_weight + first * width_, width_);
  }

  void logits_to_gradient(T* row, int64_t r, int64_t first, int64_t n) {
    const RowStats& stats = stats_[static_cast<size_t>(r)];
    if (exp_only_) {
      row_exp_(row, n, stats.max, inverse_temperature_);
      return;
    }
    if (softcap_ > 0.0) row_softcap_(row, n, softcap_);
    const int64_t target = own_row(in_.head, targets_[begin_ + r]) - first;
    if (target >= 0 && target < n) target_logits_[static_cast<size_t>(r)] = static_cast<double>(row[target]);
    row_softmax_grad_(row, n, inverse_temperature_, stats, in_.grad_log_prob[token(r)],
                      in_.grad_entropy.empty() ? 0.0 : in_.grad_entropy[token(r)], softcap_);
  }

  void add_wave(T* d_rows) {
    const int64_t down = ceil_div(rows_, kSliceRows);
    const int64_t across = ceil_div(width_, kSliceColumns);
    const int64_t slice_columns = ceil_div(ceil_div(width_, across), kPadding) * kPadding;
    parallel_tasks<T>(down * across, 0, [&](int64_t slice, T*) {
      const int64_t row = slice / across * kSliceRows;
      const int64_t column = slice % across * slice_columns;
      if (column >= width_) return;
      blas::gemm(Trans::kNo, Trans::kNo, std::min(kSliceRows, rows_ - row), std::min(slice_columns, width_ - column),
                 columns_, T(1), wave_.get() + row * stride_, stride_, weight_ + wave_begin_ * width_ + column, width_,
                 wave_begin_ == 0 ? T(0) : T(1), d_rows + row * width_ + column, width_);
    });
  }

  void finish_rows(T* d_rows, T* d_weight) {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t target = own_row(in_.head, targets_[begin_ + r]);
      const T factor = factors_[static_cast<size_t>(r)];
      T* const row = d_rows == nullptr ? nullptr : d_rows + r * width_;
      if (!is_own_row(in_.head, target)) {
        for (int64_t k = 0; row != nullptr && k < width_; ++k) row[k] *= factor;
        continue;
      }
      const T slope = static_cast<T>(target_slope(in_.grad_log_prob[token(r)], inverse_temperature_, softcap_,
                                                  target_logits_[static_cast<size_t>(r)]));
      if (d_weight != nullptr) add_scaled(slope, hidden_ + (begin_ + r) * width_, width_, d_weight + target * width_);
      if (row == nullptr) continue;
      const T* const from = weight_ + target * width_;
      for (int64_t k = 0; k < width_; ++k) row[k] = factor * row[k] + slope * from[k];
    }
  }

  const SecondPassInput& in_;
  const T* hidden_;
  const T* weight_;
  const int64_t* targets_;
  double softcap_;
  double inverse_temperature_;
  bool exp_only_;
  int64_t width_;
  int64_t vocab_;
  int64_t chunk_rows_ = 0;
  int64_t wave_columns_ = 0;
  int64_t stride_ = 0;      // numbers from one row of wave_ to the next
  int64_t begin_ = 0;       // first row of the chunk
  int64_t rows_ = 0;        // rows of the chunk
  int64_t wave_begin_ = 0;  // the wave's first column in the vocabulary
  int64_t columns_ = 0;     // columns of the wave
  std::unique_ptr<T[]> wave_;
  std::unique_ptr<T[]> scaled_hidden_;
  std::vector<RowStats> stats_;  // max is m
  std::vector<T> factors_;
  std::vector<double> target_logits_;
};

}  // namespace

void head_second_pass(const SecondPassInput& input, const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH,
                      const HeadOptions& options) {
  dispatch_float(input.hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    SecondPass<T> pass(input, options);
    pass.run(data_or_null<T>(d_hidden_RH), data_or_null<T>(d_weight_VH));
  });
}

}  // namespace mortise
