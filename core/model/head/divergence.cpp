// See divergence.h. A chunk of tokens takes four parallel phases over blocks of the vocabulary:
//   logits    of both heads, and their normalisers
//   values    the divergence; the teacher's logits become e = q / p, or q for the forward KL
//   means     e becomes r - r*, and E_p[r - r*]; not for the forward KL
//   gradient  d D / d logit = (1 - beta) p (r - E_p[r]) / temperature, or (p - q) / temperature
// With r = log(p / m) = -log(1 - beta + beta e), and log(q / m) = log e + r.
// The policy's likeliest token has r = r*. If its p is close to 1, r - E_p[r] is the difference of two nearly equal
// numbers. Differences to r* keep their digits: r - r* = -log(1 + x), x = beta (e - e*) / (1 - beta + beta e*).
#include "model/head/divergence.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "model/head/operator_pair.h"
#include "model/head/row_softmax.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/two_heads.h"
#include "model/tensor/kernel.h"
#include "model/tensor/vector_math.h"

namespace mortise {
namespace {

// The numbers of a row that its columns need.
struct PairRow {
  double lse = 0, other_lse = 0;  // normalisers of the policy and the teacher
  double inverse_temperature = 1;
  double beta = 0;
  int64_t likeliest_column = 0;  // where the largest of the policy's logits on this rank is
  int64_t likeliest_rank = 0;    // the rank that has the largest of all
  double likeliest_e = 0;        // e*
  double mean = 0;               // E_p[r - r*]
  double factor = 0;             // weight / temperature, times 1 - beta
  double cap = 0;
};

// exp(t) stays finite in T; beyond, one of p and q is 0 next to the other.
template <class T>
constexpr T kMostLogRatio = T(80);

template <class T>
MORTISE_INLINE void divergence_body(const T* z, T* other, int64_t size, const PairRow& row, double* sum) {
  const T scale = static_cast<T>(row.inverse_temperature), lse = static_cast<T>(row.lse);
  const T other_lse = static_cast<T>(row.other_lse);
  const T beta = static_cast<T>(row.beta), rest = static_cast<T>(1.0 - row.beta);
  T value = 0;
#pragma omp simd reduction(+ : value)
  for (int64_t i = 0; i < size; ++i) {
    T log_p = z[i] * scale - lse, log_q = other[i] * scale - other_lse;
    log_p = log_p < T(-1e4) ? T(-1e4) : log_p;
    log_q = log_q < T(-1e4) ? T(-1e4) : log_q;
    T t = log_q - log_p;
    t = t > kMostLogRatio<T> ? kMostLogRatio<T> : t;
    const T e = fast_exp(t), r = -std::log(rest + beta * e);
    const T p = fast_exp(log_p), q = fast_exp(log_q);
    value += beta * q * (t + r) + rest * p * r;
    other[i] = e;
  }
  *sum = static_cast<double>(value);
}

// e becomes r - r*; the sum of p (r - r*).
template <class T>
MORTISE_INLINE void mean_body(const T* z, T* other, int64_t size, const PairRow& row, double* sum) {
  const T scale = static_cast<T>(row.inverse_temperature), lse = static_cast<T>(row.lse);
  const T beta = static_cast<T>(row.beta), likeliest_e = static_cast<T>(row.likeliest_e);
  const T inverse = T(1) / (static_cast<T>(1.0 - row.beta) + beta * likeliest_e);
  T mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < size; ++i) {
    T log_p = z[i] * scale - lse;
    log_p = log_p < T(-1e4) ? T(-1e4) : log_p;
    const T x = beta * (other[i] - likeliest_e) * inverse;
    const T r = x > T(-0.5) ? -std::log1p(x) : -std::log((static_cast<T>(1.0 - row.beta) + beta * other[i]) * inverse);
    mean += fast_exp(log_p) * r;
    other[i] = r;
  }
  *sum = static_cast<double>(mean);
}

template <class T>
MORTISE_INLINE void forward_kl_body(const T* z, T* other, int64_t size, const PairRow& row, double* sum) {
  const T scale = static_cast<T>(row.inverse_temperature), lse = static_cast<T>(row.lse);
  const T other_lse = static_cast<T>(row.other_lse);
  T value = 0;
#pragma omp simd reduction(+ : value)
  for (int64_t i = 0; i < size; ++i) {
    T log_q = other[i] * scale - other_lse;
    log_q = log_q < T(-1e4) ? T(-1e4) : log_q;
    const T q = fast_exp(log_q);
    value += q * (log_q - (z[i] * scale - lse));
    other[i] = q;
  }
  *sum = static_cast<double>(value);
}

// z becomes the gradient by it; of a capped logit by what it was before.
template <class T>
MORTISE_INLINE void divergence_grad_body(T* z, const T* other, int64_t size, const PairRow& row) {
  const T scale = static_cast<T>(row.inverse_temperature), lse = static_cast<T>(row.lse);
  const T factor = static_cast<T>(row.factor), mean = static_cast<T>(row.mean);
  const T inverse_cap = row.cap > 0.0 ? static_cast<T>(1.0 / row.cap) : T(0);
  const bool is_forward = row.beta == 0.0;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const T cap = z[i] * inverse_cap;
    T log_p = z[i] * scale - lse;
    log_p = log_p < T(-1e4) ? T(-1e4) : log_p;
    const T p = fast_exp(log_p);
    const T slope = is_forward ? p - other[i] : p * (other[i] - mean);
    z[i] = factor * slope * (T(1) - cap * cap);
  }
}

MORTISE_CPU_CLONES void divergence_clone(const float* z, float* other, int64_t n, const PairRow& row, double* sum) {
  divergence_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void divergence_clone(const double* z, double* other, int64_t n, const PairRow& row, double* sum) {
  divergence_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void forward_kl_clone(const float* z, float* other, int64_t n, const PairRow& row, double* sum) {
  forward_kl_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void forward_kl_clone(const double* z, double* other, int64_t n, const PairRow& row, double* sum) {
  forward_kl_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void mean_clone(const float* z, float* other, int64_t n, const PairRow& row, double* sum) {
  mean_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void mean_clone(const double* z, double* other, int64_t n, const PairRow& row, double* sum) {
  mean_body(z, other, n, row, sum);
}
MORTISE_CPU_CLONES void divergence_grad_clone(float* z, const float* other, int64_t n, const PairRow& row) {
  divergence_grad_body(z, other, n, row);
}
MORTISE_CPU_CLONES void divergence_grad_clone(double* z, const double* other, int64_t n, const PairRow& row) {
  divergence_grad_body(z, other, n, row);
}

template <class T>
class DivergencePass : public TwoHeads<T> {
 public:
  DivergencePass(const HeadSide& policy, const HeadSide& teacher, double beta, double temperature,
                 const HeadOptions& options)
      : TwoHeads<T>(policy, teacher, temperature, options),
        beta_(beta),
        stats_(static_cast<size_t>(this->num_tokens())),
        sums_(stats_.size(), 0.0),
        rows_(stats_.size()) {}

  void forward(int64_t begin, int64_t end, std::span<double> values) {
    this->start(begin, end);
    for_blocks([&](int64_t block) { measure_block(block); });
    merge_blocks();
    normalise();
    for_blocks([&](int64_t block) { value_block(block); });
    sum_blocks([&](int64_t r, double sum) { values[static_cast<size_t>(r)] = sum; });
    if (beta_ == 0.0) return;
    find_likeliest();
    for_blocks([&](int64_t block) { mean_block(block); });
    sum_blocks([&](int64_t r, double sum) { row_of(r).mean = sum; });
  }

  // Normalisers; values and e*; means.
  [[nodiscard]] int num_walks() const { return beta_ == 0.0 ? 2 : 3; }
  void add_window(int walk) {
    if (walk == 0) {
      for_blocks([&](int64_t block) { measure_block(block); });
      merge_blocks();
      return;
    }
    compute_blocks(/*with_means=*/walk == 2);
    for (int64_t r = 0; r < this->rows(); ++r) {
      PairRow& row = row_of(r);
      double& sum = walk == 1 ? sums_[this->token(r)] : row.mean;
      for (int64_t block = 0; block < this->num_blocks(); ++block) sum += block_sums_[at(block, r)];
      if (walk == 1 && this->has_column(row.likeliest_column)) row.likeliest_e = likeliest_of(r);
    }
  }
  void end_walk(int walk) {
    if (walk == 0) return normalise();
    if (this->share() != nullptr) join_sums(walk);
  }
  [[nodiscard]] double value(size_t token) const { return sums_[token]; }
  void compute_again() { compute_blocks(/*with_means=*/beta_ > 0.0); }

  void gradient_of_row(int64_t block, int64_t r, double weight) {
    PairRow row = row_of(r);
    row.factor = weight * row.inverse_temperature * (1.0 - beta_);
    divergence_grad_clone(this->z(block, r), this->other(block, r), this->columns(block), row);
  }

 private:
  struct BlockStats {
    RowStats policy{}, teacher{};
    int64_t likeliest_column = 0;
  };

  [[nodiscard]] size_t at(int64_t block, int64_t row) const {
    return static_cast<size_t>(block * this->chunk_rows() + row);
  }
  PairRow& row_of(int64_t r) { return rows_[this->token(r)]; }
  [[nodiscard]] const PairRow& row_of(int64_t r) const { return rows_[this->token(r)]; }

  template <class Work>
  void for_blocks(const Work& work) {
    block_stats_.resize(static_cast<size_t>(this->chunk_rows() * this->num_blocks()));
    block_sums_.resize(block_stats_.size());
    parallel_tasks<T>(this->num_blocks(), 0, [&](int64_t block, T*) { work(block); });
  }

  // What a window adds for tokens that have normalisers.
  void compute_blocks(bool with_means) {
    for_blocks([&](int64_t block) {
      this->compute_logits(block);
      value_block(block);
      if (with_means) mean_block(block);
    });
  }

  void measure_block(int64_t block) {
    this->compute_logits(block);
    const int64_t n = this->columns(block);
    for (int64_t r = 0; r < this->rows(); ++r) {
      BlockStats& stats = block_stats_[at(block, r)];
      const T* const z = this->z(block, r);
      stats.policy = row_softmax_stats(z, n, this->inverse_temperature());
      stats.likeliest_column = std::max_element(z, z + n) - z;
      stats.teacher = row_softmax_stats(this->other(block, r), n, this->inverse_temperature());
    }
  }

  // [ranks, rows, width]: what each rank that shares the vocabulary has for each row.
  [[nodiscard]] at::Tensor of_ranks(int64_t width, const std::function<void(int64_t row, double* numbers)>& own) const {
    const at::Tensor numbers = at::empty({this->rows(), width}, at::kDouble);
    for (int64_t r = 0; r < this->rows(); ++r) own(r, numbers.mutable_data_ptr<double>() + r * width);
    return this->share() != nullptr ? of_all_ranks(*this->share(), numbers) : numbers.unsqueeze(0);
  }

  // The stats of this rank's columns, and where its likeliest one is, with those of the windows before.
  void merge_blocks() {
    const double scale = this->inverse_temperature();
    for (int64_t r = 0; r < this->rows(); ++r) {
      BlockStats& all = stats_[this->token(r)];
      for (int64_t block = 0; block < this->num_blocks(); ++block) {
        BlockStats one = block_stats_[at(block, r)];
        one.likeliest_column += this->first_column() + block * kPairBlockColumns;
        if (this->is_first_window() && block == 0) {
          all = one;
          continue;
        }
        if (one.policy.max > all.policy.max) all.likeliest_column = one.likeliest_column;
        all.policy = all.policy.merged(one.policy, scale);
        all.teacher = all.teacher.merged(one.teacher, scale);
      }
    }
  }

  void normalise() {
    const double scale = this->inverse_temperature();
    const at::Tensor all = of_ranks(6, [&](int64_t r, double* numbers) {
      const BlockStats& stats = stats_[this->token(r)];
      for (const RowStats* one : {&stats.policy, &stats.teacher}) {
        for (const double number : {one->max, one->sum, one->weighted}) *numbers++ = number;
      }
    });
    for (int64_t r = 0; r < this->rows(); ++r) {
      PairRow& row = row_of(r);
      row.likeliest_column = stats_[this->token(r)].likeliest_column;
      RowStats policy, teacher;
      for (int64_t rank = 0; rank < all.size(0); ++rank) {
        const double* const from = numbers_of_rank(all, rank, r);
        const RowStats of_rank{from[0], from[1], from[2]}, teacher_of_rank{from[3], from[4], from[5]};
        if (rank == 0 || of_rank.max > policy.max) row.likeliest_rank = rank;
        policy = rank == 0 ? of_rank : policy.merged(of_rank, scale);
        teacher = rank == 0 ? teacher_of_rank : teacher.merged(teacher_of_rank, scale);
      }
      row.lse = policy.lse(scale);
      row.other_lse = teacher.lse(scale);
      row.inverse_temperature = scale;
      row.beta = beta_;
      row.cap = this->policy().softcap;
    }
  }

  // e of this rank's likeliest column, which is in memory.
  [[nodiscard]] double likeliest_of(int64_t r) const {
    const int64_t place = row_of(r).likeliest_column - this->first_column();
    return static_cast<double>(this->other(place / kPairBlockColumns, r)[place % kPairBlockColumns]);
  }

  // e* from the rank that has the likeliest column.
  void find_likeliest() {
    const at::Tensor all = of_ranks(1, [&](int64_t r, double* number) { *number = likeliest_of(r); });
    take_likeliest(all, 0);
  }
  // `number`: the place of e* among those of a row.
  void take_likeliest(const at::Tensor& all, size_t number) {
    for (int64_t r = 0; r < this->rows(); ++r) {
      PairRow& row = row_of(r);
      row.likeliest_e = numbers_of_rank(all, row.likeliest_rank, r)[number];
    }
  }

  // What a walk has summed over this rank's columns becomes the sum over all.
  void join_sums(int walk) {
    const auto sum_of = [&](int64_t r) -> double& { return walk == 1 ? sums_[this->token(r)] : row_of(r).mean; };
    const at::Tensor all = of_ranks(2, [&](int64_t r, double* numbers) {
      numbers[0] = sum_of(r);
      numbers[1] = row_of(r).likeliest_e;
    });
    for (int64_t r = 0; r < this->rows(); ++r) {
      double sum = 0;
      for (int64_t rank = 0; rank < all.size(0); ++rank) sum += numbers_of_rank(all, rank, r)[0];
      sum_of(r) = sum;
    }
    if (walk == 1) take_likeliest(all, 1);
  }

  void value_block(int64_t block) {
    const int64_t n = this->columns(block);
    for (int64_t r = 0; r < this->rows(); ++r) {
      const PairRow& row = row_of(r);
      double* const sum = &block_sums_[at(block, r)];
      if (beta_ == 0.0)
        forward_kl_clone(this->z(block, r), this->other(block, r), n, row, sum);
      else
        divergence_clone(this->z(block, r), this->other(block, r), n, row, sum);
    }
  }

  void mean_block(int64_t block) {
    const int64_t n = this->columns(block);
    for (int64_t r = 0; r < this->rows(); ++r)
      mean_clone(this->z(block, r), this->other(block, r), n, row_of(r), &block_sums_[at(block, r)]);
  }

  // take(row, sum of its blocks in their order, rank by rank).
  void sum_blocks(const std::function<void(int64_t row, double sum)>& take) const {
    const at::Tensor all = of_ranks(1, [&](int64_t r, double* sum) {
      *sum = 0;
      for (int64_t block = 0; block < this->num_blocks(); ++block) *sum += block_sums_[at(block, r)];
    });
    for (int64_t r = 0; r < this->rows(); ++r) {
      double sum = 0;
      for (int64_t rank = 0; rank < all.size(0); ++rank) sum += *numbers_of_rank(all, rank, r);
      take(r, sum);
    }
  }

  double beta_;
  std::vector<BlockStats> block_stats_{};  // [block][row]
  std::vector<double> block_sums_{};       // the same
  std::vector<BlockStats> stats_;          // by token
  std::vector<double> sums_;               // values so far
  std::vector<PairRow> rows_;
};

}  // namespace

std::vector<double> head_divergence(const HeadSide& policy, const HeadSide& whole_teacher, double beta,
                                    double temperature, std::span<const double> weight_R, const at::Tensor& d_hidden_RH,
                                    const at::Tensor& d_weight_VH, const HeadOptions& options) {
  if (beta == 1.0) return head_full_kl(policy, whole_teacher, temperature, weight_R, d_hidden_RH, d_weight_VH, options);
  const HeadSide teacher{whole_teacher.hidden_RH, rows_of_share(whole_teacher.head, policy.head.share)};
  TORCH_CHECK(beta >= 0.0 && beta < 1.0, "divergence: beta");
  check_two_heads(policy, teacher, weight_R.size(), temperature, d_hidden_RH, d_weight_VH);
  if (policy.head.by_operators)
    return by_operators::head_divergence(policy, teacher, beta, temperature, weight_R, d_hidden_RH, d_weight_VH,
                                         options);
  std::vector<double> values(weight_R.size());
  dispatch_float(policy.hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    DivergencePass<T> pass(policy, teacher, beta, temperature, options);
    if (reads_windows(policy, teacher))
      run_two_heads_by_windows<T>(pass, {policy, teacher, d_weight_VH}, weight_R, d_hidden_RH, values);
    else
      run_two_heads<T>(pass, policy.hidden_RH.size(0), weight_R, d_hidden_RH, d_weight_VH, values);
  });
  sum_hidden_gradient(policy.head, d_hidden_RH);
  return values;
}

}  // namespace mortise
