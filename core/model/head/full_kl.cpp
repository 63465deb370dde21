// See full_kl.h.
//
// A chunk of C tokens is worked on in two parallel phases over fixed blocks of the vocabulary:
//   forward   z and z - z_ref of the block; both normalisers, and sum exp(z) (z - z_ref), against the block's maximum
//   backward  z becomes d loss / d logits; d_hidden parts and d_W_b from two products
// KL = E_p[z - z_ref] / T - (lse - lse_ref): no log-softmax is written down, and equal logits give 0 exactly.
#include "model/head/full_kl.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "model/head/operator_pair.h"
#include "model/head/row_softmax.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/two_heads.h"
#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

constexpr double kFloor = -1e4;      // least exponent: exp is 0 there
constexpr int64_t kSentNumbers = 7;  // for each token

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
  double max = 0;          // the row's largest logit
  double inverse_sum = 0;  // 1 over the row's normalizer
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
class FullKlPass : public TwoHeads<T> {
 public:
  FullKlPass(const HeadSide& policy, const HeadSide& reference, double temperature, const HeadOptions& options)
      : TwoHeads<T>(policy, reference, temperature, options), stats_(static_cast<size_t>(this->num_tokens())) {}

  // kl [rows of the chunk]
  void forward(int64_t begin, int64_t end, std::span<double> kl) {
    this->start(begin, end);
    add_window(0);
    if (this->share() != nullptr) join();
    for (int64_t r = 0; r < this->rows(); ++r) kl[static_cast<size_t>(r)] = value(this->token(r));
  }

  static int num_walks() { return 1; }
  void add_window(int /*walk*/) {
    compute_again();
    const double scale = this->inverse_temperature();
    for (int64_t r = 0; r < this->rows(); ++r) {
      PairStats& stats = stats_[this->token(r)];
      if (this->is_first_window()) stats = at(0, r);
      for (int64_t block = this->is_first_window() ? 1 : 0; block < this->num_blocks(); ++block)
        stats = stats.merged(at(block, r), scale);
    }
  }
  void end_walk(int /*walk*/) {
    if (this->share() != nullptr) join();
  }
  [[nodiscard]] double value(size_t token) const { return stats_[token].kl(this->inverse_temperature()); }
  void compute_again() {
    block_stats_.resize(static_cast<size_t>(this->chunk_rows() * this->num_blocks()));
    parallel_tasks<T>(this->num_blocks(), 0, [&](int64_t block, T*) { forward_block(block); });
  }

  void gradient_of_row(int64_t block, int64_t r, double weight) {
    const PairStats& stats = stats_[this->token(r)];
    const double scale = this->inverse_temperature();
    RowGrad row;
    row.max = stats.policy.max;
    row.inverse_sum = 1.0 / stats.policy.sum;
    row.offset = stats.lse_gap(scale) + stats.kl(scale);
    row.factor = weight * scale;
    row.inverse_temperature = scale;
    row.cap = this->policy().softcap;
    full_kl_grad_clone(this->z(block, r), this->other(block, r), this->columns(block), row);
  }

 private:
  // The stats of this rank's columns become those of all.
  void join() {
    const int64_t num_rows = this->rows();
    const at::Tensor own = at::empty({num_rows, kSentNumbers}, at::kDouble);
    auto* sent = own.mutable_data_ptr<double>();
    for (int64_t r = 0; r < num_rows; ++r) {
      const auto& [policy, reference, cross] = stats_[this->token(r)];
      for (const RowStats* one : {&policy, &reference}) {
        for (const double number : {one->max, one->sum, one->weighted}) *sent++ = number;
      }
      *sent++ = cross;
    }
    const at::Tensor all = of_all_ranks(*this->share(), own);
    for (int64_t rank = 0; rank < all.size(0); ++rank) {
      for (int64_t r = 0; r < num_rows; ++r) {
        const double* const from = numbers_of_rank(all, rank, r);
        const PairStats of_rank{{from[0], from[1], from[2]}, {from[3], from[4], from[5]}, from[6]};
        PairStats& stats = stats_[this->token(r)];
        stats = rank == 0 ? of_rank : stats.merged(of_rank, this->inverse_temperature());
      }
    }
  }

  PairStats& at(int64_t block, int64_t row) {
    return block_stats_[static_cast<size_t>(block * this->chunk_rows() + row)];
  }

  // The other side's logits become z - z_ref.
  void forward_block(int64_t block) {
    this->compute_logits(block);
    const int64_t n = this->columns(block);
    const double scale = this->inverse_temperature();
    for (int64_t r = 0; r < this->rows(); ++r) {
      T* const z = this->z(block, r);
      T* const other = this->other(block, r);
      PairStats& stats = at(block, r);
      stats.policy = row_softmax_stats(z, n, scale);
      stats.reference = row_softmax_stats(other, n, scale);
      difference_clone(z, other, n, stats.policy.max, scale, &stats.cross);
    }
  }

  std::vector<PairStats> block_stats_;  // [block][row]
  std::vector<PairStats> stats_;        // by token
};

}  // namespace

int64_t full_kl_bytes(int64_t num_rows, int64_t width, int64_t vocab, int64_t element_bytes, int64_t columns,
                      const HeadOptions& options) {
  return two_heads_bytes(num_rows, width, vocab, element_bytes, columns, options);
}

std::vector<double> head_full_kl(const HeadSide& policy, const HeadSide& whole_reference, double temperature,
                                 std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                 const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const HeadSide reference{whole_reference.hidden_RH, rows_of_share(whole_reference.head, policy.head.share)};
  check_two_heads(policy, reference, weight_R.size(), temperature, d_hidden_RH, d_weight_VH);
  if (policy.head.by_operators) {
    return by_operators::head_divergence(policy, reference, /*beta=*/1.0, temperature, weight_R, d_hidden_RH,
                                         d_weight_VH, options);
  }
  std::vector<double> kl(weight_R.size());
  dispatch_float(policy.hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    FullKlPass<T> pass(policy, reference, temperature, options);
    if (reads_windows(policy, reference))
      run_two_heads_by_windows<T>(pass, {policy, reference, d_weight_VH}, weight_R, d_hidden_RH, kl);
    else
      run_two_heads<T>(pass, policy.hidden_RH.size(0), weight_R, d_hidden_RH, d_weight_VH, kl);
  });
  sum_hidden_gradient(policy.head, d_hidden_RH);
  return kl;
}

}  // namespace mortise
