// See log_prob_head.h.
//
// A chunk of C tokens is worked on in two parallel phases over fixed blocks of the vocabulary:
//   forward   logits[b] = hidden W_b^T; while they are in the cache, exp and sums against the block's own maximum
//   backward  d_hidden += f E_b W_b and d_W_b += E_b^T (f hidden), f = -g / (T sum) * exp((max_b - max) / T) per row
// so the softmax is never normalised in memory: the row factor goes to the small side of each product, and the target's
// own +g/T is added apart. Only where the loss depends on the entropy, or the logits are capped, are logits kept and
// turned into gradients.
#include "model/head/log_prob_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "foundation/metrics/op_timer.h"
#include "model/head/chunks.h"
#include "model/head/head_products.h"
#include "model/head/head_windows.h"
#include "model/head/operator_head.h"
#include "model/head/row_softmax.h"
#include "model/head/second_pass.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/target_term.h"
#include "model/tensor/blas.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

using blas::Trans;

constexpr int64_t kMaxChunkRows = 512;
constexpr int64_t kBlockColumns = 2048;
static_assert(kHeadWindowRows % kBlockColumns == 0);  // smaller blocks divide it
constexpr int64_t kWide = 256;
constexpr int64_t kScratchRows = 4;  // a worker's scratch, counted for two workers, whatever their number
constexpr int64_t kFewBlocks = 4;    // fewer give threads too little to share; narrow ones are then cut
constexpr int64_t kPart = 128;       // rows, or columns, of a part of a block

// Columns of a block. Products of narrow hidden states are cheap, so reading and writing the logits costs most: 1 MiB of
// float32 in a chunk stays in a core's cache. Wide ones are multiplied faster in large blocks.
int64_t block_columns(int64_t width) { return width < kWide ? kBlockColumns / 4 : kBlockColumns; }

enum class Keep { kNothing, kExp, kLogits };  // what the logits buffer holds after the forward phase

// Logits that nothing reads again are in a worker's scratch, one block of columns at a time. The chunk's memory then
// holds more rows, and the weight is read from memory fewer times.
int64_t row_elements(Keep keep, int64_t width, int64_t vocab) {
  const int64_t columns = block_columns(width);
  return keep == Keep::kNothing ? kScratchRows * columns
                                : vocab + (num_column_blocks(vocab, columns) + kScratchRows) * width;
}

template <class T>
class HeadPass {
 public:
  HeadPass(const at::Tensor& hidden, const VocabularyHead& head, const at::Tensor& targets, double temperature,
           Keep keep, const HeadOptions& options)
      : head_(head),
        hidden_(hidden.const_data_ptr<T>()),
        weight_(head.weight_VH.const_data_ptr<T>()),
        softcap_(head.softcap),
        targets_(targets.const_data_ptr<int64_t>()),
        inverse_temperature_(1.0 / temperature),
        keep_(keep),
        width_(hidden.size(1)),
        vocab_(head.weight_VH.size(0)),
        columns_(block_columns(width_)),
        num_blocks_(num_column_blocks(vocab_, columns_)),
        blocks_of_all_(is_window(head) ? num_column_blocks(head.share->whole, columns_) : num_blocks_) {
    // Ranks that share the vocabulary take the same chunks.
    const int64_t most = head.share != nullptr ? head.share->most : vocab_;
    const int64_t row_bytes = row_elements(keep_, width_, most) * static_cast<int64_t>(sizeof(T));
    chunk_rows_ = head_chunk_rows(hidden.size(0), row_bytes, kMaxChunkRows, options);
    const auto rows = static_cast<size_t>(chunk_rows_);
    if (keep_ != Keep::kNothing) logits_.reset(new T[rows * static_cast<size_t>(vocab_)]);
    block_stats_.resize(rows * static_cast<size_t>(num_blocks_));
    stats_.resize(rows);
    target_logits_.resize(rows);
    log_prob_.resize(rows);
    entropy_.resize(rows);
  }

  int64_t chunk_rows() const { return chunk_rows_; }
  std::span<const double> log_prob() const { return {log_prob_.data(), static_cast<size_t>(rows_)}; }
  std::span<const double> entropy() const { return {entropy_.data(), static_cast<size_t>(rows_)}; }
  double lse(size_t row) const { return stats_[row].lse(inverse_temperature_); }

  void forward(int64_t begin, int64_t end) {
    forward_blocks(begin, end);
    compute_ranges(rows_, std::max<int64_t>(1, kPart / num_blocks_), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        stats_[static_cast<size_t>(r)] = sum_blocks(r, nullptr);
        if (head_.share == nullptr) finish_row(r);
      }
    });
    if (head_.share != nullptr) join_ranks();
  }

  // The same of a window, of which earlier ones have begun `sums`. The sums have the bits of one pass over all windows.
  void add_window(int64_t begin, int64_t end, std::span<WindowSum> sums) {
    forward_blocks(begin, end);
    for (int64_t r = 0; r < rows_; ++r) {
      WindowSum& sum = sums[static_cast<size_t>(begin_ + r)];
      const bool is_first = sum.stats.sum == 0.0;  // a window makes it at least 1, or not a number
      sum.stats = sum_blocks(r, is_first ? nullptr : &sum.stats);
      if (is_own_row(head_, target_row(r))) sum.target_logit = target_logits_[static_cast<size_t>(r)];
    }
  }

  // Gradients of the chunk of the last forward. grad_entropy may be empty (with Keep::kExp it must be).
  void backward(std::span<const double> grad_log_prob, std::span<const double> grad_entropy, T* d_hidden, T* d_weight) {
    const int64_t chunk_size = rows_ * width_, parts = num_parts(rows_);
    const bool wants_hidden = d_hidden != nullptr;
    if (wants_hidden) partial_.resize(static_cast<size_t>(num_blocks_ * chunk_size));
    if (parts == 1) {
      parallel_tasks<T>(num_blocks_, chunk_size, [&](int64_t block, T* scratch) {
        hidden_part(block, {0, rows_}, grad_log_prob, grad_entropy, wants_hidden,
                    d_weight == nullptr ? nullptr : scratch);
        if (d_weight != nullptr) weight_part(block, {0, columns(block)}, scratch, d_weight);
      });
    } else {
      backward_in_parts(grad_log_prob, grad_entropy, wants_hidden, d_weight);
    }
    for (int64_t r = 0; r < rows_; ++r) add_target(r, grad_log_prob[static_cast<size_t>(r)], d_weight);
    if (wants_hidden) write_d_hidden(grad_log_prob, d_hidden + begin_ * width_);
  }

 private:
  void forward_blocks(int64_t begin, int64_t end) {
    begin_ = begin;
    rows_ = end - begin;
    const bool in_scratch = keep_ == Keep::kNothing;
    const int64_t parts = num_parts(rows_);
    parallel_tasks<T>(num_blocks_ * parts, in_scratch ? ceil_div(rows_, parts) * std::min(columns_, vocab_) : 0,
                      [&](int64_t task, T* scratch) {
                        const BlockRange rows = part(rows_, task % parts, parts);
                        const int64_t block = task / parts;
                        forward_block(block, rows,
                                      in_scratch ? scratch : block_logits(block) + rows.begin * columns(block));
                      });
  }

  int64_t columns(int64_t block) const { return std::min(columns_, vocab_ - block * columns_); }
  // How many parts the rows or columns of a block are cut into. It depends on the shapes alone.
  int64_t num_parts(int64_t count) const {
    return blocks_of_all_ >= kFewBlocks || width_ >= kWide ? 1 : ceil_div(count, kPart);
  }
  static BlockRange part(int64_t count, int64_t i, int64_t parts) {
    return {count * i / parts, count * (i + 1) / parts};
  }
  OpWork product_work(int64_t rows, int64_t n) const {
    return {2.0 * static_cast<double>(rows * n * width_),
            sizeof(T) * static_cast<double>(rows * n + rows * width_ + n * width_)};
  }
  T* block_logits(int64_t block) const { return logits_.get() + block * columns_ * rows_; }
  RowStats& at(int64_t block, int64_t row) { return block_stats_[static_cast<size_t>(block * chunk_rows_ + row)]; }

  // `logits` [rows, columns of the block]
  void forward_block(int64_t block, const BlockRange& rows, T* logits) {
    const int64_t first = block * columns_;
    const int64_t n = columns(block);
    {
      const OpTimer timer("head, forward", [&] { return product_work(rows.size(), n); });
      blas::gemm(Trans::kNo, Trans::kYes, rows.size(), n, width_, T(1), hidden_ + (begin_ + rows.begin) * width_,
                 width_, weight_ + first * width_, width_, T(0), logits, n);
    }
    const OpTimer timer("head, softmax", 0, 2.0 * sizeof(T) * static_cast<double>(rows.size() * n));
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      T* row = logits + (r - rows.begin) * n;
      if (softcap_ > 0.0) row_softcap_(row, n, softcap_);
      const int64_t target = target_row(r) - first;
      if (target >= 0 && target < n) target_logits_[static_cast<size_t>(r)] = static_cast<double>(row[target]);
      at(block, r) = keep_ == Keep::kExp ? row_softmax_exp_(row, n, inverse_temperature_)
                                         : row_softmax_stats(row, n, inverse_temperature_);
    }
  }

  // The stats of this row, behind the blocks that `before` counts. Null: there are none.
  RowStats sum_blocks(int64_t r, const RowStats* before) {
    RowStats stats = before == nullptr ? at(0, r) : before->merged(at(0, r), inverse_temperature_);
    for (int64_t block = 1; block < num_blocks_; ++block) stats = stats.merged(at(block, r), inverse_temperature_);
    return stats;
  }

  void join_ranks() {
    for (int64_t r = 0; r < rows_; ++r) {
      if (!is_own_row(head_, target_row(r))) target_logits_[static_cast<size_t>(r)] = 0.0;
    }
    const auto rows = static_cast<size_t>(rows_);
    join_stats(*head_.share, inverse_temperature_, std::span(stats_).first(rows),
               std::span(target_logits_).first(rows));
    for (int64_t r = 0; r < rows_; ++r) finish_row(r);
  }

  // The row of the weight; with ranks that share them it may be another one's.
  int64_t target_row(int64_t r) const { return own_row(head_, targets_[begin_ + r]); }

  void finish_row(int64_t r) {
    const RowStats& stats = stats_[static_cast<size_t>(r)];
    log_prob_[static_cast<size_t>(r)] = stats.log_prob(target_logits_[static_cast<size_t>(r)], inverse_temperature_);
    entropy_[static_cast<size_t>(r)] = stats.entropy();
  }

  // What row r of the block is to be multiplied with to be d loss / d logits (without the target's own part).
  T row_factor(int64_t block, int64_t r, double grad) {
    if (keep_ == Keep::kLogits) return T(1);
    const RowStats& whole = stats_[static_cast<size_t>(r)];
    const double shift = at(block, r).max == whole.max ? 0.0 : (at(block, r).max - whole.max) * inverse_temperature_;
    return static_cast<T>(-grad * inverse_temperature_ / whole.sum * std::exp(shift));
  }

  // The part of d_hidden that these rows get from the block, and what their hidden states count in d_weight (`scaled`,
  // null: it is not wanted), both [rows_, width_].
  void hidden_part(int64_t block, const BlockRange& rows, std::span<const double> grad_log_prob,
                   std::span<const double> grad_entropy, bool wants_hidden, T* scaled) {
    const int64_t first = block * columns_, n = columns(block), count = rows.size();
    T* const logits = block_logits(block) + rows.begin * n;
    T* const partial = wants_hidden ? partial_.data() + block * rows_ * width_ : nullptr;  // [rows_, width_] too
    const OpTimer timer("head, backward", [&] { return wants_hidden ? product_work(count, n) : OpWork(); });
    for (int64_t r = rows.begin; keep_ == Keep::kLogits && r < rows.end; ++r) {
      row_softmax_grad_(logits + (r - rows.begin) * n, n, inverse_temperature_, stats_[static_cast<size_t>(r)],
                        grad_log_prob[static_cast<size_t>(r)],
                        grad_entropy.empty() ? 0.0 : grad_entropy[static_cast<size_t>(r)], softcap_);
    }
    if (wants_hidden)
      blas::gemm(Trans::kNo, Trans::kNo, count, width_, n, T(1), logits, n, weight_ + first * width_, width_, T(0),
                 partial + rows.begin * width_, width_);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const T factor = row_factor(block, r, grad_log_prob[static_cast<size_t>(r)]);
      const T* const hidden = hidden_ + (begin_ + r) * width_;
      for (int64_t i = 0; wants_hidden && i < width_; ++i) partial[r * width_ + i] *= factor;
      for (int64_t i = 0; scaled != nullptr && i < width_; ++i) scaled[r * width_ + i] = factor * hidden[i];
    }
  }

  void weight_part(int64_t block, const BlockRange& part, const T* scaled, T* d_weight) {
    const OpTimer timer("head, backward", [&] { return product_work(rows_, part.size()); });
    const int64_t n = columns(block);
    blas::gemm(Trans::kYes, Trans::kNo, part.size(), width_, rows_, T(1), block_logits(block) + part.begin, n, scaled,
               width_, T(1), d_weight + (block * columns_ + part.begin) * width_, width_);
  }

  // Parts of rows, then parts of columns, whose sums need all rows.
  void backward_in_parts(std::span<const double> grad_log_prob, std::span<const double> grad_entropy, bool wants_hidden,
                         T* d_weight) {
    const int64_t parts = num_parts(rows_), chunk_size = rows_ * width_;
    if (d_weight != nullptr) scaled_.resize(static_cast<size_t>(num_blocks_ * chunk_size));
    const auto scaled = [&](int64_t block) {
      return d_weight == nullptr ? nullptr : scaled_.data() + block * chunk_size;
    };
    parallel_tasks<T>(num_blocks_ * parts, 0, [&](int64_t task, T*) {
      const int64_t block = task / parts;
      hidden_part(block, part(rows_, task % parts, parts), grad_log_prob, grad_entropy, wants_hidden, scaled(block));
    });
    if (d_weight == nullptr) return;
    const int64_t column_parts = num_parts(std::min(columns_, vocab_));
    parallel_tasks<T>(num_blocks_ * column_parts, 0, [&](int64_t task, T*) {
      const int64_t block = task / column_parts;
      const BlockRange columns_of = part(columns(block), task % column_parts, column_parts);
      if (columns_of.size() > 0) weight_part(block, columns_of, scaled(block), d_weight);
    });
  }

  T target_factor(int64_t r, double grad) const {
    return static_cast<T>(target_slope(grad, inverse_temperature_, softcap_, target_logits_[static_cast<size_t>(r)]));
  }

  void add_target(int64_t r, double grad, T* d_weight) const {
    const int64_t target = target_row(r);
    if (d_weight == nullptr || !is_own_row(head_, target)) return;
    add_scaled(target_factor(r, grad), hidden_ + (begin_ + r) * width_, width_, d_weight + target * width_);
  }

  void write_d_hidden(std::span<const double> grad_log_prob, T* out) const {
    compute_ranges(rows_, std::max<int64_t>(1, 16384 / (width_ * (num_blocks_ + 1))), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) {
        T* row = out + r * width_;
        if (const int64_t place = target_row(r); is_own_row(head_, place)) {
          const T factor = target_factor(r, grad_log_prob[static_cast<size_t>(r)]);
          const T* target = weight_ + place * width_;
          for (int64_t i = 0; i < width_; ++i) row[i] = factor * target[i];
        } else {
          std::fill_n(row, width_, T(0));
        }
        for (int64_t block = 0; block < num_blocks_; ++block) {
          add_scaled(T(1), partial_.data() + (block * rows_ + r) * width_, width_, row);
        }
      }
    });
  }

  const VocabularyHead& head_;
  const T* hidden_;
  const T* weight_;
  double softcap_;
  const int64_t* targets_;
  double inverse_temperature_;
  Keep keep_;
  int64_t width_;
  int64_t vocab_;
  int64_t columns_;  // the vocabulary's, in a block
  int64_t num_blocks_;
  int64_t blocks_of_all_;  // the same of all windows
  int64_t chunk_rows_ = 0;
  int64_t begin_ = 0;
  int64_t rows_ = 0;
  std::unique_ptr<T[]> logits_;        // [block][row][column of the block]; none with Keep::kNothing
  std::vector<RowStats> block_stats_;  // [block][row]
  std::vector<RowStats> stats_;
  std::vector<double> target_logits_;
  std::vector<double> log_prob_;
  std::vector<double> entropy_;
  std::vector<T> partial_;  // [block][row][hidden]: parts of d_hidden
  std::vector<T> scaled_;   // the same of hidden states times their factors, where blocks are cut into parts
};

void check_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double temperature) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "head: shapes do not match");
  TORCH_CHECK(hidden.is_contiguous() && weight.is_contiguous() && targets.is_contiguous(), "head: not contiguous");
  TORCH_CHECK(hidden.scalar_type() == weight.scalar_type(), "head: dtypes differ");
  TORCH_CHECK(targets.numel() == hidden.size(0) && temperature > 0.0, "head: targets or temperature");
}

void check_gradients(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& d_hidden,
                     const at::Tensor& d_weight) {
  TORCH_CHECK(!d_hidden.defined() || (d_hidden.is_contiguous() && d_hidden.sizes() == hidden.sizes()),
              "head: d_hidden");
  TORCH_CHECK(!d_weight.defined() || (d_weight.is_contiguous() && d_weight.sizes() == weight.sizes()),
              "head: d_weight");
}

// The rows of a head whose gradient is computed in windows. Null: at once.
std::unique_ptr<RowWindows> rows_in_windows(const VocabularyHead& head, const at::Tensor& d_weight_VH,
                                            const HeadOptions& options) {
  const int64_t row_bytes = head.weight_VH.size(1) * static_cast<int64_t>(head.weight_VH.element_size());
  const int64_t num_rows = head.share != nullptr ? head.share->most : head.weight_VH.size(0);
  const bool is_small = num_rows * row_bytes <= options.window_bytes;
  const bool is_apart = head.rows != nullptr || head.by_operators;
  if (options.window_bytes == 0 || is_small || is_apart) return nullptr;
  return std::make_unique<by_windows::WholeRows>(head, d_weight_VH, options.window_bytes);
}

std::span<const double> span_of(const at::Tensor& doubles) {
  if (!doubles.defined()) return {};
  return {doubles.const_data_ptr<double>(), static_cast<size_t>(doubles.numel())};
}

}  // namespace

int64_t head_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes, const HeadOptions& options) {
  const int64_t row_bytes = row_elements(Keep::kExp, width, vocab) * element_bytes;
  return head_chunk_rows(num_rows, row_bytes, kMaxChunkRows, options) * row_bytes;
}

void add_window_sums(const at::Tensor& hidden_RH, const VocabularyHead& window, const at::Tensor& targets_R,
                     double temperature, std::span<WindowSum> sums, const HeadOptions& options) {
  const int64_t num = hidden_RH.size(0);
  dispatch_float(hidden_RH, [&](auto zero) {
    HeadPass<decltype(zero)> pass(hidden_RH, window, targets_R, temperature, Keep::kNothing, options);
    for (int64_t begin = 0; begin < num; begin += pass.chunk_rows())
      pass.add_window(begin, std::min(num, begin + pass.chunk_rows()), sums);
  });
}

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options) {
  const at::NoGradGuard no_grad;
  if (head.rows != nullptr)
    return by_windows::head_log_prob(hidden_RH, head, targets_R, temperature, want_entropy, options);
  check_head(hidden_RH, head.weight_VH, targets_R, temperature);
  if (head.by_operators)
    return by_operators::head_log_prob(hidden_RH, head, targets_R, temperature, want_entropy, options);
  const int64_t num = hidden_RH.size(0);
  LogProbs out;
  out.log_prob_R = at::empty({num}, hidden_RH.options().requires_grad(false));
  if (want_entropy) out.entropy_R = at::empty({num}, hidden_RH.options().requires_grad(false));
  out.norms_R.resize(static_cast<size_t>(num));
  dispatch_float(hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    HeadPass<T> pass(hidden_RH, head, targets_R, temperature, Keep::kNothing, options);
    T* log_prob = out.log_prob_R.mutable_data_ptr<T>();
    for (int64_t begin = 0; begin < num; begin += pass.chunk_rows()) {
      pass.forward(begin, std::min(num, begin + pass.chunk_rows()));
      for (size_t i = 0; i < pass.log_prob().size(); ++i) {
        const int64_t place = begin + static_cast<int64_t>(i);
        log_prob[place] = static_cast<T>(pass.log_prob()[i]);
        if (want_entropy) out.entropy_R.mutable_data_ptr<T>()[place] = static_cast<T>(pass.entropy()[i]);
        out.norms_R[static_cast<size_t>(place)] = {pass.lse(i), pass.entropy()[i]};
      }
    }
  });
  return out;
}

void head_backward(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, const at::Tensor& grad_log_prob_R, const at::Tensor& grad_entropy_R,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, std::span<const TokenNorm> norms_R,
                   const HeadOptions& options) {
  const at::NoGradGuard no_grad;
  const EntropyUse use = grad_entropy_R.defined() ? EntropyUse::kGradient : EntropyUse::kNone;
  const at::Tensor grad = grad_log_prob_R.to(at::kDouble).contiguous();
  const at::Tensor grad_entropy =
      use == EntropyUse::kGradient ? grad_entropy_R.to(at::kDouble).contiguous() : at::Tensor();
  const auto of_whole = rows_in_windows(head, d_weight_VH, options);
  if (RowWindows* const rows = head.rows != nullptr ? head.rows : of_whole.get(); rows != nullptr) {
    by_windows::head_backward({hidden_RH, head, targets_R, temperature, norms_R, span_of(grad), span_of(grad_entropy)},
                              *rows, d_hidden_RH, options);
    return;
  }
  if (!norms_R.empty()) {
    check_head(hidden_RH, head.weight_VH, targets_R, temperature);
    check_gradients(hidden_RH, head.weight_VH, d_hidden_RH, d_weight_VH);
    TORCH_CHECK(static_cast<int64_t>(norms_R.size()) == hidden_RH.size(0), "head: norms");
    if (head.by_operators) {
      by_operators::head_second_pass(hidden_RH, head, targets_R, temperature, norms_R, span_of(grad),
                                     span_of(grad_entropy), d_hidden_RH, d_weight_VH, options);
      return;
    }
    head_second_pass({hidden_RH, head, targets_R, temperature, norms_R, span_of(grad), span_of(grad_entropy)},
                     d_hidden_RH, d_weight_VH, options);
    sum_hidden_gradient(head, d_hidden_RH);
    return;
  }
  const auto inject = [&](const HeadChunk& chunk) {
    const double* g = grad.const_data_ptr<double>();
    std::copy(g + chunk.begin, g + chunk.end, chunk.grad_log_prob.begin());
    if (use != EntropyUse::kGradient) return;
    const double* gh = grad_entropy.const_data_ptr<double>();
    std::copy(gh + chunk.begin, gh + chunk.end, chunk.grad_entropy.begin());
  };
  head_one_pass(hidden_RH, head, targets_R, temperature, use, inject, d_hidden_RH, d_weight_VH, options);
}

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, EntropyUse entropy, const std::function<void(const HeadChunk&)>& on_chunk,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const at::NoGradGuard no_grad;
  const auto of_whole = rows_in_windows(head, d_weight_VH, options);
  if (RowWindows* const rows = head.rows != nullptr ? head.rows : of_whole.get(); rows != nullptr) {
    by_windows::head_one_pass(hidden_RH, head, *rows, targets_R, temperature, entropy, on_chunk, d_hidden_RH, options);
    return;
  }
  check_head(hidden_RH, head.weight_VH, targets_R, temperature);
  check_gradients(hidden_RH, head.weight_VH, d_hidden_RH, d_weight_VH);
  if (head.by_operators) {
    by_operators::head_one_pass(hidden_RH, head, targets_R, temperature, entropy, on_chunk, d_hidden_RH, d_weight_VH,
                                options);
    return;
  }
  const int64_t num = hidden_RH.size(0);
  const Keep keep = entropy == EntropyUse::kGradient || head.softcap > 0.0 ? Keep::kLogits : Keep::kExp;
  dispatch_float(hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    HeadPass<T> pass(hidden_RH, head, targets_R, temperature, keep, options);
    std::vector<double> grad(static_cast<size_t>(pass.chunk_rows()));
    std::vector<double> grad_entropy(entropy == EntropyUse::kGradient ? grad.size() : 0);
    for (int64_t begin = 0; begin < num; begin += pass.chunk_rows()) {
      const int64_t end = std::min(num, begin + pass.chunk_rows());
      const auto rows = static_cast<size_t>(end - begin);
      pass.forward(begin, end);
      std::fill(grad.begin(), grad.end(), 0.0);
      std::fill(grad_entropy.begin(), grad_entropy.end(), 0.0);
      const std::span<double> grads(grad.data(), rows);
      const std::span<double> entropy_grads(grad_entropy.data(), grad_entropy.empty() ? 0 : rows);
      const std::span<const double> entropies =
          entropy == EntropyUse::kNone ? std::span<const double>() : pass.entropy();
      on_chunk({begin, end, pass.log_prob(), entropies, grads, entropy_grads});
      if (any_nonzero(grads) || any_nonzero(entropy_grads)) {
        pass.backward(grads, entropy_grads, data_or_null<T>(d_hidden_RH), data_or_null<T>(d_weight_VH));
      } else if (d_hidden_RH.defined()) {
        d_hidden_RH.narrow(0, begin, end - begin).zero_();
      }
    }
  });
  sum_hidden_gradient(head, d_hidden_RH);
}

at::Tensor head_logits(const at::Tensor& hidden_RH, const VocabularyHead& head) {
  const at::Tensor logits = head_product(hidden_RH, head);
  return head.softcap > 0.0 ? at::tanh(logits / head.softcap) * head.softcap : logits;
}

LogProbs head_log_prob_plain(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                             double temperature) {
  const at::Tensor log_p = at::log_softmax(head_logits(hidden_RH, head) / temperature, -1);
  return {.log_prob_R = log_p.gather(1, targets_R.unsqueeze(1)).squeeze(1),
          .entropy_R = -(log_p.exp() * log_p).sum(-1)};
}

}  // namespace mortise
