// See head_windows.h.
#include "model/head/head_windows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "model/head/shared_vocabulary.h"
#include "model/layers/tensor_ranks.h"
#include "model/tensor/kernel.h"

namespace mortise::by_windows {
namespace {

constexpr int64_t kTokensAtOnce = 512;  // that a loss sees in one call

VocabularyHead window_of(const VocabularyHead& head, int64_t first, const at::Tensor& rows) {
  VocabularyHead window(rows, head.softcap);
  const int64_t count = rows.size(0), begin = head.share != nullptr ? head.share->begin : 0;
  window.share =
      std::make_shared<VocabularyShare>(VocabularyShare{nullptr, begin + first, count, count, head.weight_VH.size(0)});
  return window;
}

void check_windows(const at::Tensor& hidden, const VocabularyHead& head, const at::Tensor& targets,
                   double temperature) {
  TORCH_CHECK(hidden.dim() == 2 && hidden.is_contiguous() && targets.is_contiguous(), "head: not contiguous");
  TORCH_CHECK(hidden.size(1) == head.weight_VH.size(1), "head: shapes do not match");
  TORCH_CHECK(hidden.scalar_type() == head.weight_VH.scalar_type(), "head: dtypes differ");
  TORCH_CHECK(targets.numel() == hidden.size(0) && temperature > 0.0, "head: targets or temperature");
  TORCH_CHECK(!head.by_operators, "head: windows are for heads on the CPU");
}

// The numbers of each token after a walk over all rows.
class Sums {
 public:
  Sums(const at::Tensor& hidden_RH, const VocabularyHead& head, RowWindows& all_rows, const at::Tensor& targets_R,
       double temperature, const HeadOptions& options)
      : inverse_temperature_(1.0 / temperature), sums_(static_cast<size_t>(hidden_RH.size(0))) {
    check_windows(hidden_RH, head, targets_R, temperature);
    all_rows.walk([&](int64_t first, const at::Tensor& rows) {
      const at::Tensor used = used_rows(head, first, rows);
      if (used.defined())
        add_window_sums(hidden_RH, window_of(head, first, used), targets_R, temperature, sums_, options);
    });
    if (head.share != nullptr && !sums_.empty()) join_ranks(*head.share);
  }

  [[nodiscard]] size_t size() const { return sums_.size(); }
  [[nodiscard]] double log_prob(size_t token) const {
    return sums_[token].stats.log_prob(sums_[token].target_logit, inverse_temperature_);
  }
  [[nodiscard]] double entropy(size_t token) const { return sums_[token].stats.entropy(); }
  [[nodiscard]] std::vector<TokenNorm> norms() const {
    std::vector<TokenNorm> out;
    for (size_t t = 0; t < size(); ++t) out.push_back({sums_[t].stats.lse(inverse_temperature_), entropy(t)});
    return out;
  }

 private:
  void join_ranks(const VocabularyShare& share) {
    std::vector<RowStats> stats;
    std::vector<double> target_logits;
    for (const WindowSum& sum : sums_) {
      stats.push_back(sum.stats);
      target_logits.push_back(sum.target_logit);
    }
    join_stats(share, inverse_temperature_, stats, target_logits);
    for (size_t t = 0; t < sums_.size(); ++t) sums_[t] = {stats[t], target_logits[t]};
  }

  double inverse_temperature_;
  std::vector<WindowSum> sums_;
};

}  // namespace

void WholeRows::walk(const Use& use) { use(0, weight_VH_); }

void WholeRows::walk_back(const UseBack& use) {
  const int64_t num_rows = weight_VH_.size(0);
  const int64_t row_bytes = weight_VH_.size(1) * static_cast<int64_t>(weight_VH_.element_size());
  const int64_t most = rows_of_window(window_bytes_, row_bytes);
  for (int64_t first = 0; first < num_rows; first += most) {
    const int64_t count = std::min(most, num_rows - first);
    use(first, weight_VH_.narrow(0, first, count),
        d_weight_VH_.defined() ? d_weight_VH_.narrow(0, first, count) : at::Tensor());
  }
}

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options) {
  const Sums sums(hidden_RH, head, *head.rows, targets_R, temperature, options);
  LogProbs out;
  out.log_prob_R = at::empty({hidden_RH.size(0)}, hidden_RH.options().requires_grad(false));
  if (want_entropy) out.entropy_R = at::empty_like(out.log_prob_R);
  out.norms_R = sums.norms();
  dispatch_float(hidden_RH, [&](auto zero) {
    using T = decltype(zero);
    for (size_t t = 0; t < sums.size(); ++t) {
      out.log_prob_R.mutable_data_ptr<T>()[t] = static_cast<T>(sums.log_prob(t));
      if (want_entropy) out.entropy_R.mutable_data_ptr<T>()[t] = static_cast<T>(sums.entropy(t));
    }
  });
  return out;
}

void head_backward(const SecondPassInput& input, RowWindows& all_rows, const at::Tensor& d_hidden_RH,
                   const HeadOptions& options) {
  std::vector<TokenNorm> own_norms;
  if (input.norms.empty())
    own_norms = Sums(input.hidden_RH, input.head, all_rows, input.targets_R, input.temperature, options).norms();
  const std::span<const TokenNorm> norms = input.norms.empty() ? own_norms : input.norms;
  check_windows(input.hidden_RH, input.head, input.targets_R, input.temperature);
  TORCH_CHECK(static_cast<int64_t>(norms.size()) == input.hidden_RH.size(0), "head: norms");
  const int64_t num = input.hidden_RH.size(0);
  at::Tensor some;
  if (d_hidden_RH.defined()) {
    d_hidden_RH.zero_();
    some = at::empty({std::min(num, kTokensOfGradient), d_hidden_RH.size(1)}, d_hidden_RH.options());
  }
  all_rows.walk_back([&](int64_t first, const at::Tensor& in_window, const at::Tensor& d_in_window) {
    const at::Tensor rows = used_rows(input.head, first, in_window);
    if (!rows.defined()) return;
    const at::Tensor d_rows = d_in_window.defined() ? d_in_window.narrow(0, 0, rows.size(0)) : d_in_window;
    const VocabularyHead window = window_of(input.head, first, rows);
    for (int64_t begin = 0; begin < num; begin += kTokensOfGradient) {
      const int64_t count = std::min(kTokensOfGradient, num - begin);
      const auto of_tokens = [&](auto all) {
        return all.empty() ? all : all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
      };
      const at::Tensor hidden = input.hidden_RH.narrow(0, begin, count),
                       targets = input.targets_R.narrow(0, begin, count);
      const at::Tensor d_hidden = some.defined() ? some.narrow(0, 0, count) : some;
      head_second_pass({hidden, window, targets, input.temperature, of_tokens(norms), of_tokens(input.grad_log_prob),
                        of_tokens(input.grad_entropy)},
                       d_hidden, d_rows, options);
      if (d_hidden.defined()) d_hidden_RH.narrow(0, begin, count).add_(d_hidden);
    }
  });
  sum_hidden_gradient(input.head, d_hidden_RH);
}

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, RowWindows& rows,
                   const at::Tensor& targets_R, double temperature, EntropyUse entropy,
                   const std::function<void(const HeadChunk&)>& on_chunk, const at::Tensor& d_hidden_RH,
                   const HeadOptions& options) {
  const Sums sums(hidden_RH, head, rows, targets_R, temperature, options);
  std::vector<double> log_prob(sums.size()), entropies, grad(sums.size(), 0.0), grad_entropy;
  for (size_t t = 0; t < sums.size(); ++t) log_prob[t] = sums.log_prob(t);
  for (size_t t = 0; entropy != EntropyUse::kNone && t < sums.size(); ++t) entropies.push_back(sums.entropy(t));
  if (entropy == EntropyUse::kGradient) grad_entropy.resize(sums.size(), 0.0);
  for (int64_t begin = 0; begin < hidden_RH.size(0); begin += kTokensAtOnce) {
    const int64_t end = std::min(hidden_RH.size(0), begin + kTokensAtOnce);
    const auto of_chunk = [&](auto& values) {
      return std::span(values).subspan(values.empty() ? 0 : static_cast<size_t>(begin),
                                       values.empty() ? 0 : static_cast<size_t>(end - begin));
    };
    on_chunk({begin, end, of_chunk(log_prob), of_chunk(entropies), of_chunk(grad), of_chunk(grad_entropy)});
  }
  head_backward({hidden_RH, head, targets_R, temperature, sums.norms(), grad, grad_entropy}, rows, d_hidden_RH,
                options);
}

}  // namespace mortise::by_windows
