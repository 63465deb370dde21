// See operator_head.h.
#include "model/head/operator_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "model/head/chunks.h"
#include "model/head/head_products.h"
#include "model/head/kept_logits.h"
#include "model/head/kernel_head.h"

namespace mortise::by_operators {
namespace {

constexpr int64_t kColumns = 16384;  // columns of a block of the vocabulary
constexpr int64_t kMostRows = 4096;

// Some rows of float64 numbers by token on the host, for the device or from it.
class HostRows {
 public:
  HostRows(int64_t num_rows, int64_t num_tokens) : rows_(at::zeros({num_rows, num_tokens}, at::kDouble)) {}
  explicit HostRows(const at::Tensor& there) : rows_(there.to(at::kCPU)) {}
  [[nodiscard]] std::span<double> operator[](int64_t row) const {
    const auto size = static_cast<size_t>(rows_.size(1));
    return {rows_.mutable_data_ptr<double>() + row * rows_.size(1), size};
  }
  [[nodiscard]] at::Tensor tensor(int64_t row) const { return rows_.select(0, row); }
  [[nodiscard]] at::Tensor on(const c10::Device& device) const { return sent_to(device, rows_); }

 private:
  at::Tensor rows_;
};

// Rows of the numbers of each token of a chunk.
enum : int64_t { kLse, kLogProb, kEntropy };

int64_t rows_of_chunk(int64_t num_rows, int64_t vocab, int64_t element_bytes, bool keeps_logits,
                      const HeadOptions& options) {
  const int64_t rows = head_chunk_rows(num_rows, std::min(kColumns, vocab) * element_bytes, kMostRows, options);
  return keeps_logits ? std::min(rows, KernelHead::rows_to_keep(vocab)) : rows;
}

class OperatorHead {
 public:
  OperatorHead(const at::Tensor& hidden, const VocabularyHead& head, const at::Tensor& targets, double temperature,
               const HeadOptions& options, bool goes_back_at_once = false)
      : hidden_(hidden),
        head_(with_rounded_weight(head)),
        inputs_(head_inputs(hidden, head)),
        targets_(sent_to(hidden.device(), targets)),
        temperature_(temperature),
        vocab_(head.weight_VH.size(0)) {
    if (const DeviceKernels* kernels = KernelHead::find(hidden, head))
      kernels_.emplace(*kernels, head_, temperature, kColumns);
    keeps_logits_ = kernels_ && goes_back_at_once;
    const auto element_bytes = static_cast<int64_t>(hidden.element_size());
    chunk_rows_ = rows_of_chunk(hidden.size(0), vocab_, element_bytes, keeps_logits_, options);
  }

  using Forward = KernelHead::Forward;  // without kernels there are no rows

  [[nodiscard]] int64_t chunk_rows() const { return chunk_rows_; }
  [[nodiscard]] int64_t num_rows() const { return hidden_.size(0); }

  [[nodiscard]] c10::Device device() const { return hidden_.device(); }

  [[nodiscard]] Forward forward(int64_t begin, int64_t end) const {
    if (kernels_) return kernels_->forward(chunk(begin, end), keeps_logits_);
    const at::TensorOptions real = hidden_.options().dtype(at::kDouble);
    at::Tensor max = at::full({end - begin}, -std::numeric_limits<double>::infinity(), real);
    at::Tensor sum = at::zeros({end - begin}, real), shifted = at::zeros({end - begin}, real);
    at::Tensor target = at::zeros({end - begin}, real);
    for (int64_t first = 0; first < vocab_; first += kColumns) {
      const at::Tensor z = logits(begin, end, first) / temperature_;
      const Targets own = targets_in(begin, end, first);
      target = at::where(own.is_here, at::gather(z, 1, own.place).squeeze(1).to(at::kDouble), target);
      // sum = sum of e^(z - max), shifted = sum of e^(z - max) (z - max): both move to the larger maximum.
      const at::Tensor most = at::maximum(max, std::get<0>(z.max(1)).to(at::kDouble));
      const at::Tensor lower = z - most.to(z.scalar_type()).unsqueeze(1);
      const at::Tensor e = at::exp(lower);
      const at::Tensor move = (max - most).clamp_min(-1e4);  // no 0 times infinity at the first block
      const at::Tensor factor = at::exp(move);
      shifted = factor * (shifted + move * sum) + at::sum(e * lower, {1}, /*keepdim=*/false, at::kDouble);
      sum = factor * sum + at::sum(e, {1}, /*keepdim=*/false, at::kDouble);
      max = most;
    }
    const at::Tensor log_sum = at::log(sum);
    const at::Tensor lse = max + log_sum;
    return {at::stack({lse, target - lse, log_sum - shifted / sum}), {}};
  }

  // Writes the rows of d_hidden and adds to d_weight; either may be undefined. `grads` [2, C] in float64: by log-prob,
  // and by entropy if `by_entropy`.
  void backward(int64_t begin, int64_t end, Forward numbers, const at::Tensor& grads, bool by_entropy,
                const at::Tensor& d_hidden, const at::Tensor& d_weight) const {
    at::Tensor d_rows;
    if (d_hidden.defined()) d_rows = d_hidden.narrow(0, begin, end - begin).zero_();
    const at::Tensor lse = numbers.numbers.select(0, kLse), entropy = numbers.numbers.select(0, kEntropy);
    const at::Tensor given = grads.to(hidden_.scalar_type());
    if (kernels_) {
      if (!numbers.rows.defined()) numbers.rows = kernels_->rows_of(lse, entropy);
      kernels_->backward(chunk(begin, end), numbers, given, d_rows, d_weight);
      return;
    }
    backward_by_operators(begin, end, lse, by_entropy ? entropy : at::Tensor(), given, d_rows, d_weight);
  }

 private:
  // Without `entropy` there is no gradient by it.
  void backward_by_operators(int64_t begin, int64_t end, const at::Tensor& lse_C, const at::Tensor& entropy,
                             const at::Tensor& grads, const at::Tensor& d_rows, const at::Tensor& d_weight) const {
    const at::ScalarType dtype = hidden_.scalar_type();
    const at::Tensor rows = inputs_.narrow(0, begin, end - begin);
    const double softcap = head_.softcap;
    const at::Tensor lse = lse_C.to(dtype).unsqueeze(1), g = grads.select(0, 0).unsqueeze(1);
    for (int64_t first = 0; first < vocab_; first += kColumns) {
      const at::Tensor capped = logits(begin, end, first);
      const at::Tensor log_p = capped / temperature_ - lse;
      at::Tensor slope = -g;
      if (entropy.defined()) slope = slope - grads.select(0, 1).unsqueeze(1) * (log_p + entropy.to(dtype).unsqueeze(1));
      at::Tensor dz = at::exp(log_p) * slope;
      const Targets own = targets_in(begin, end, first);
      const at::Tensor more = at::where(own.is_here.unsqueeze(1), g, at::zeros_like(g));
      dz.scatter_(1, own.place, at::gather(dz, 1, own.place) + more);
      dz.div_(temperature_);
      if (softcap > 0.0) dz = dz * (1.0 - (capped / softcap).square());
      const int64_t columns = columns_from(first);
      add_head_gradients(dz, rows, head_columns(head_, first, columns), d_rows,
                         d_weight.defined() ? d_weight.narrow(0, first, columns) : d_weight);
    }
  }

  [[nodiscard]] TokenChunk chunk(int64_t begin, int64_t end) const {
    return {inputs_.narrow(0, begin, end - begin), targets_.narrow(0, begin, end - begin)};
  }

  // Where the targets of a chunk are in a block. `place` is valid for all of them.
  struct Targets {
    at::Tensor is_here;  // [C]
    at::Tensor place;    // [C, 1]
  };

  [[nodiscard]] int64_t columns_from(int64_t first) const { return std::min(kColumns, vocab_ - first); }
  [[nodiscard]] at::Tensor logits(int64_t begin, int64_t end, int64_t first) const {
    return head_logits(inputs_.narrow(0, begin, end - begin), head_columns(head_, first, columns_from(first)));
  }
  [[nodiscard]] Targets targets_in(int64_t begin, int64_t end, int64_t first) const {
    const int64_t count = columns_from(first);
    const at::Tensor place = targets_.narrow(0, begin, end - begin) - first;
    return {(place >= 0).logical_and(place < count), place.clamp(0, count - 1).unsqueeze(1)};
  }

  at::Tensor hidden_;
  VocabularyHead head_;
  at::Tensor inputs_, targets_;
  double temperature_;
  int64_t vocab_;
  int64_t chunk_rows_ = 0;
  std::optional<KernelHead> kernels_;
  bool keeps_logits_ = false;
};

}  // namespace

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options);
  HostRows all(3, pass.num_rows());
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const HostRows numbers(pass.forward(begin, end).numbers);
    for (const int64_t row : {kLse, kLogProb, kEntropy}) std::ranges::copy(numbers[row], all[row].begin() + begin);
  }
  LogProbs out;
  out.log_prob_R = all.tensor(kLogProb).to(hidden_RH.scalar_type());
  if (want_entropy) out.entropy_R = all.tensor(kEntropy).to(hidden_RH.scalar_type());
  for (size_t i = 0; i < all[kLse].size(); ++i) out.norms_R.push_back({all[kLse][i], all[kEntropy][i]});
  return out;
}

void head_second_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                      double temperature, std::span<const TokenNorm> norms_R, std::span<const double> grad_log_prob,
                      std::span<const double> grad_entropy, const at::Tensor& d_hidden_RH,
                      const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options);
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    const HostRows numbers(3, end - begin), grads(2, end - begin);
    for (size_t i = 0; i < count; ++i) {
      numbers[kLse][i] = norms_R[first + i].lse;
      numbers[kEntropy][i] = norms_R[first + i].entropy;
    }
    std::ranges::copy(grad_log_prob.subspan(first, count), grads[0].begin());
    if (!grad_entropy.empty()) std::ranges::copy(grad_entropy.subspan(first, count), grads[1].begin());
    pass.backward(begin, end, {numbers.on(pass.device()), {}}, grads.on(pass.device()), !grad_entropy.empty(),
                  d_hidden_RH, d_weight_VH);
  }
}

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, EntropyUse entropy, const std::function<void(const HeadChunk&)>& on_chunk,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options, /*goes_back_at_once=*/true);
  const bool by_entropy = entropy == EntropyUse::kGradient;
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const OperatorHead::Forward chunk = pass.forward(begin, end);
    const HostRows numbers(chunk.numbers), grads(2, end - begin);
    const std::span<double> none;
    on_chunk({begin, end, numbers[kLogProb], entropy == EntropyUse::kNone ? none : numbers[kEntropy], grads[0],
              by_entropy ? grads[1] : none});
    if (any_nonzero(grads[0]) || any_nonzero(grads[1])) {
      pass.backward(begin, end, chunk, grads.on(pass.device()), by_entropy, d_hidden_RH, d_weight_VH);
    } else if (d_hidden_RH.defined()) {
      d_hidden_RH.narrow(0, begin, end - begin).zero_();
    }
  }
}

}  // namespace mortise::by_operators

namespace mortise {

int64_t kept_logit_bytes(int64_t num_rows, int64_t vocab) {
  return by_operators::rows_of_chunk(num_rows, vocab, sizeof(float), /*keeps_logits=*/true, {}) * vocab *
         int64_t{sizeof(float)};
}

int64_t rounded_head_bytes(int64_t num_rows, int64_t width, int64_t vocab) {
  const int64_t rows = by_operators::rows_of_chunk(num_rows, vocab, sizeof(float), /*keeps_logits=*/true, {});
  return 2 * (vocab * width + num_rows * width + rows * std::min(by_operators::kColumns, vocab));
}

}  // namespace mortise
