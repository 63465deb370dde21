// See kept_head.h. A token's logits are dot products with the rows of the head that it kept; the gradient computes them
// again. d_weight is written by blocks of the hidden dimension, in the order of the tokens, so that it has one sum. Windows of a
// head come in the order of the ids, so that all sums have the bits of a whole head.
#include "model/head/kept_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "model/head/head_products.h"
#include "model/head/operator_kept.h"
#include "model/head/shared_vocabulary.h"
#include "model/head/token_filter.h"
#include "model/tensor/kernel.h"

namespace mortise {
namespace {

constexpr int64_t kHiddenBlock = 64;
constexpr int64_t kFilterRows = 64;  // tokens whose whole logits are in memory, to find what is kept

template <class T>
double dot(const T* a, const T* b, int64_t size) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return static_cast<double>(sum);
}

// A kept token's logit over the temperature after cap and penalties, and its slope by the dot product.
struct KeptLogit {
  double value = 0, slope = 0;
};

KeptLogit kept_logit(double z, double softcap, double inverse_temperature, const KeptTokens& kept, size_t k) {
  KeptLogit out{z, inverse_temperature};
  if (softcap > 0.0) {
    const double t = std::tanh(z / softcap);
    out.value = softcap * t;
    out.slope *= 1.0 - t * t;
  }
  if (!kept.shift.empty()) {
    if (kept.is_seen[k] != 0) {
      const double factor = out.value < 0 ? kept.repetition_penalty : 1.0 / kept.repetition_penalty;
      out.value *= factor;
      out.slope *= factor;
    }
    out.value -= static_cast<double>(kept.shift[k]);
  }
  out.value *= inverse_temperature;
  return out;
}

// The distribution of one place.
struct Place {
  std::vector<KeptLogit> logits{};
  size_t target = 0;  // among them
  double lse = 0, entropy = 0;

  [[nodiscard]] double log_p(size_t i) const { return logits[i].value - lse; }
};

template <class T>
class KeptPass {
 public:
  KeptPass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R, double temperature,
           const KeptTokens& kept)
      : hidden_(hidden_RH.const_data_ptr<T>()),
        weight_(head.rows == nullptr ? head.weight_VH.const_data_ptr<T>() : nullptr),
        targets_(targets_R.const_data_ptr<int64_t>()),
        behind_(head.weight_VH.size(0)),
        width_(hidden_RH.size(1)),
        softcap_(head.softcap),
        inverse_temperature_(1.0 / temperature),
        kept_(kept) {}

  // For tensors of a device, and heads of windows: these products in place of the pass's own.
  void use_dots(std::vector<double> dots) { dots_ = std::move(dots); }
  // The products with the rows of a head of windows: a walk.
  void walk_dots(RowWindows& rows, int64_t num) {
    std::vector<double> dots(kept_.ids.size());
    rows.walk([&](int64_t first, const at::Tensor& window) {
      use_window(first, window);
      for_rows(num, [&](int64_t r) {
        each_in_window(r, [&](size_t place, int64_t id) { dots[place] = dot(hidden(r), weight(id), width_); });
      });
    });
    use_dots(std::move(dots));
  }
  // Only tokens of this window have rows from now on.
  void use_window(int64_t first, const at::Tensor& window) {
    weight_ = window.const_data_ptr<T>();
    first_ = first;
    behind_ = first + window.size(0);
  }

  [[nodiscard]] const T* hidden(int64_t r) const { return hidden_ + r * width_; }
  [[nodiscard]] const T* weight(int64_t id) const { return weight_ + (id - first_) * width_; }
  [[nodiscard]] int64_t width() const { return width_; }

  void look(int64_t r, Place& place) const {
    const std::span<const int32_t> ids = kept_.at(r);
    const auto first = static_cast<size_t>(kept_.offsets[static_cast<size_t>(r)]);
    place.logits.clear();
    double top = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == targets_[r]) place.target = i;
      const double z = dots_.empty() ? dot(hidden(r), weight(ids[i]), width_) : dots_[first + i];
      place.logits.push_back(kept_logit(z, softcap_, inverse_temperature_, kept_, first + i));
      top = std::max(top, place.logits.back().value);
    }
    double sum = 0, weighted = 0;
    for (const KeptLogit& logit : place.logits) {
      const double d = logit.value - top, e = std::exp(d);
      sum += e;
      weighted += e * d;
    }
    place.lse = top + std::log(sum);
    place.entropy = std::log(sum) - weighted / sum;
  }

  void log_probs(int64_t num, T* log_prob, T* entropy) const {
    for_rows(num, [&](int64_t r) {
      Place place;
      look(r, place);
      log_prob[r] = static_cast<T>(place.log_p(place.target));
      entropy[r] = static_cast<T>(place.entropy);
    });
  }

  // d loss / d (dot product) of every kept token.
  void logit_grads(int64_t num, const T* grad_log_prob, const T* grad_entropy, std::vector<T>& out) const {
    out.assign(kept_.ids.size(), T(0));
    for_rows(num, [&](int64_t r) {
      const double g = static_cast<double>(grad_log_prob[r]);
      const double gh = grad_entropy != nullptr ? static_cast<double>(grad_entropy[r]) : 0.0;
      if (g == 0.0 && gh == 0.0) return;
      Place place;
      look(r, place);
      const auto first = static_cast<size_t>(kept_.offsets[static_cast<size_t>(r)]);
      for (size_t i = 0; i < place.logits.size(); ++i) {
        const double log_p = place.log_p(i), p = std::exp(log_p);
        double grad = -p * (g + gh * (log_p + place.entropy));
        if (i == place.target) grad += g;
        out[first + i] = static_cast<T>(grad * place.logits[i].slope);
      }
    });
  }

  // Adds to d_hidden, and to the gradient of the weight or of the window.
  void to_hidden(int64_t num, const std::vector<T>& grads, T* d_hidden) const {
    for_rows(num, [&](int64_t r) {
      T* const out = d_hidden + r * width_;
      each(r, grads, [&](int64_t id, T grad) {
        for (int64_t h = 0; h < width_; ++h) out[h] += grad * weight(id)[h];
      });
    });
  }

  void to_weight(int64_t num, const std::vector<T>& grads, T* d_weight) const {
    const int64_t blocks = (width_ + kHiddenBlock - 1) / kHiddenBlock;
    parallel_tasks<T>(blocks, 0, [&](int64_t block, T*) {
      const int64_t begin = block * kHiddenBlock, end = std::min(width_, begin + kHiddenBlock);
      for (int64_t r = 0; r < num; ++r) {
        each(r, grads, [&](int64_t id, T grad) {
          T* const out = d_weight + (id - first_) * width_;
          for (int64_t h = begin; h < end; ++h) out[h] += grad * hidden(r)[h];
        });
      }
    });
  }

 private:
  template <class Work>
  static void for_rows(int64_t num, const Work& work) {
    parallel_tasks<T>((num + kFilterRows - 1) / kFilterRows, 0, [&](int64_t task, T*) {
      for (int64_t r = task * kFilterRows; r < std::min(num, (task + 1) * kFilterRows); ++r) work(r);
    });
  }

  // The kept tokens that have a row now, and their places among all.
  template <class Visit>
  void each_in_window(int64_t r, const Visit& visit) const {
    const std::span<const int32_t> ids = kept_.at(r);  // ascending
    const auto first = static_cast<size_t>(kept_.offsets[static_cast<size_t>(r)]);
    for (auto id = std::ranges::lower_bound(ids, first_); id != ids.end() && *id < behind_; ++id)
      visit(first + static_cast<size_t>(id - ids.begin()), *id);
  }
  template <class Visit>
  void each(int64_t r, const std::vector<T>& grads, const Visit& visit) const {
    each_in_window(r, [&](size_t place, int64_t id) {
      if (grads[place] != T(0)) visit(id, grads[place]);
    });
  }

  const T* hidden_;
  const T* weight_;
  const int64_t* targets_;
  int64_t first_ = 0, behind_;  // whose rows weight_ has
  int64_t width_;
  double softcap_;
  double inverse_temperature_;
  const KeptTokens& kept_;
  std::vector<double> dots_{};
};

void check_shapes(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                  const KeptTokens& kept) {
  TORCH_CHECK(hidden_RH.dim() == 2 && head.weight_VH.dim() == 2 && hidden_RH.size(1) == head.weight_VH.size(1),
              "kept head: shapes");
  TORCH_CHECK(hidden_RH.is_contiguous() && head.weight_VH.is_contiguous() && targets_R.is_contiguous(),
              "kept head: not contiguous");
  TORCH_CHECK(hidden_RH.scalar_type() == head.weight_VH.scalar_type(), "kept head: dtypes differ");
  TORCH_CHECK(targets_R.numel() == hidden_RH.size(0) && kept.num_places() == hidden_RH.size(0), "kept head: tokens");
}

// One place's row of logits through penalties, bars and filters.
class PlaceFilter {
 public:
  explicit PlaceFilter(const Sampling& sampling) : sampling_(sampling) {}

  // `row` are the head's logits. Gives the ids; with penalties also what these do to each.
  void run(std::vector<double>& row, const PlaceEdits* edits) {
    seen_.clear();
    if (edits != nullptr) edit(row, *edits);
    for (double& z : row) z /= sampling_.temperature;
    filter_tokens(row, sampling_, scratch_, ids);
  }

  void append_to(KeptTokens& out, int64_t target, int64_t* num_missing) {
    const auto at = std::ranges::lower_bound(ids, target);
    if (at == ids.end() || *at != target) {
      ids.insert(at, static_cast<int32_t>(target));
      ++*num_missing;
    }
    for (const int32_t id : ids) {
      out.ids.push_back(id);
      if (!sampling_.penalises()) continue;
      const auto found = seen_.find(id);
      const int64_t count = found == seen_.end() ? 0 : found->second;
      out.is_seen.push_back(found == seen_.end() ? 0 : 1);
      out.shift.push_back(static_cast<float>(sampling_.frequency_penalty * static_cast<double>(count) +
                                             (count > 0 ? sampling_.presence_penalty : 0.0)));
    }
    out.offsets.push_back(static_cast<int64_t>(out.ids.size()));
  }

  std::vector<int32_t> ids;

 private:
  void edit(std::vector<double>& row, const PlaceEdits& edits) {
    if (sampling_.penalises()) {
      for (const SeenToken& token : edits.seen) {
        double& z = row[static_cast<size_t>(token.id)];
        z = static_cast<double>(penalised(static_cast<float>(z), token, sampling_));
        seen_[token.id] = token.count;
      }
    }
    for (const int64_t id : edits.barred) row[static_cast<size_t>(id)] = -std::numeric_limits<double>::infinity();
  }

  const Sampling& sampling_;
  TokenFilterScratch scratch_;
  std::map<int64_t, int64_t> seen_;
};

}  // namespace

LogProbs kept_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& own, const at::Tensor& targets_R,
                       double temperature, const KeptTokens& kept) {
  const at::NoGradGuard no_grad;
  const WholeHead whole(own, WholeHead::Windows::kStay);
  const VocabularyHead& head = whole.head();
  check_shapes(hidden_RH, head, targets_R, kept);
  LogProbs out;
  const at::TensorOptions host = at::TensorOptions().dtype(hidden_RH.scalar_type());
  out.log_prob_R = at::empty({hidden_RH.size(0)}, host);
  out.entropy_R = at::empty({hidden_RH.size(0)}, host);
  dispatch_float(hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    KeptPass<T> pass(hidden_RH, head, targets_R, temperature, kept);
    if (head.by_operators) pass.use_dots(by_operators::kept_dots(hidden_RH, head, kept));
    if (head.rows != nullptr) pass.walk_dots(*head.rows, hidden_RH.size(0));
    pass.log_probs(hidden_RH.size(0), out.log_prob_R.mutable_data_ptr<T>(), out.entropy_R.mutable_data_ptr<T>());
  });
  return out;
}

void kept_backward(const at::Tensor& hidden_RH, const VocabularyHead& own, const at::Tensor& targets_R,
                   double temperature, const KeptTokens& kept, const at::Tensor& grad_log_prob_R,
                   const at::Tensor& grad_entropy_R, const at::Tensor& d_hidden_RH, const at::Tensor& own_d_weight_VH,
                   bool is_frozen) {
  const at::NoGradGuard no_grad;
  const WholeHead whole(own, WholeHead::Windows::kStay, is_frozen, own_d_weight_VH);
  const VocabularyHead& head = whole.head();
  const at::Tensor& d_weight_VH = whole.d_weight_VH();
  check_shapes(hidden_RH, head, targets_R, kept);
  dispatch_float(hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    KeptPass<T> pass(hidden_RH, head, targets_R, temperature, kept);
    if (head.by_operators) pass.use_dots(by_operators::kept_dots(hidden_RH, head, kept));
    const int64_t num = hidden_RH.size(0);
    if (head.rows != nullptr) pass.walk_dots(*head.rows, num);
    std::vector<T> grads;
    pass.logit_grads(num, grad_log_prob_R.const_data_ptr<T>(),
                     grad_entropy_R.defined() ? grad_entropy_R.const_data_ptr<T>() : nullptr, grads);
    if (head.by_operators) {
      const at::Tensor all =
          at::from_blob(grads.data(), {static_cast<int64_t>(grads.size())}, grad_log_prob_R.options());
      by_operators::kept_gradients(hidden_RH, head, kept, all, d_hidden_RH, d_weight_VH);
      return;
    }
    if (d_hidden_RH.defined()) d_hidden_RH.zero_();
    const auto add = [&](const at::Tensor& d_rows) {
      if (d_hidden_RH.defined()) pass.to_hidden(num, grads, d_hidden_RH.mutable_data_ptr<T>());
      if (d_rows.defined()) pass.to_weight(num, grads, d_rows.mutable_data_ptr<T>());
    };
    if (head.rows == nullptr) return add(d_weight_VH);
    head.rows->walk_back([&](int64_t first, const at::Tensor& rows, const at::Tensor& d_rows) {
      pass.use_window(first, rows);
      add(d_rows);
    });
  });
  whole.add_gradient();
}

KeptTokens find_kept_tokens(const at::Tensor& hidden_RH, const VocabularyHead& own, const at::Tensor& targets_R,
                            const Sampling& sampling, std::span<const uint8_t> mask, std::span<const PlaceEdits> edits,
                            int64_t* num_missing) {
  const at::NoGradGuard no_grad;
  const WholeHead whole(own, WholeHead::Windows::kGather);
  const VocabularyHead head = with_rounded_weight(whole.head());
  const int64_t num = hidden_RH.size(0), vocab = head.weight_VH.size(0);
  const int64_t* const targets = targets_R.const_data_ptr<int64_t>();
  std::vector<KeptTokens> parts(static_cast<size_t>(num));
  std::vector<int64_t> missing(static_cast<size_t>(num), 0);
  for (int64_t begin = 0; begin < num; begin += kFilterRows) {
    const int64_t rows = std::min(kFilterRows, num - begin);
    const at::Tensor logits_RV = head_logits(hidden_RH.narrow(0, begin, rows), head)
                                     .to(at::TensorOptions().device(at::kCPU).dtype(at::kDouble))
                                     .contiguous();
    const double* const logits = logits_RV.const_data_ptr<double>();
    parallel_tasks<double>(rows, 0, [&](int64_t r, double*) {
      const auto place = static_cast<size_t>(begin + r);
      PlaceFilter filter(sampling);
      if (mask[place] != 0) {
        std::vector<double> row(logits + r * vocab, logits + (r + 1) * vocab);
        filter.run(row, edits.empty() ? nullptr : &edits[place]);
      } else {
        filter.ids = {static_cast<int32_t>(targets[place])};
      }
      filter.append_to(parts[place], targets[place], &missing[place]);
    });
  }
  KeptTokens out;
  out.repetition_penalty = sampling.repetition_penalty;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].repetition_penalty = sampling.repetition_penalty;
    out.append(parts[i], 0, 1);
    *num_missing += missing[i];
  }
  return out;
}

}  // namespace mortise
