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
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "model/head/chunks.h"

namespace mortise::by_operators {
namespace {

constexpr int64_t kColumns = 16384;  // columns of a block of the vocabulary
constexpr int64_t kMostRows = 4096;

std::vector<double> host_doubles(const at::Tensor& values) {
  const at::Tensor host = values.to(at::TensorOptions().device(at::kCPU).dtype(at::kDouble)).contiguous();
  const auto* const data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

class OperatorHead {
 public:
  OperatorHead(const at::Tensor& hidden, const VocabularyHead& head, const at::Tensor& targets, double temperature,
               const HeadOptions& options)
      : hidden_(hidden),
        weight_(head.weight_VH),
        softcap_(head.softcap),
        targets_(targets.to(hidden.device())),
        temperature_(temperature),
        vocab_(weight_.size(0)) {
    const int64_t row_bytes = std::min(kColumns, vocab_) * static_cast<int64_t>(hidden.element_size());
    chunk_rows_ = head_chunk_rows(hidden.size(0), row_bytes, kMostRows, options);
  }

  // Numbers of the tokens of a chunk, [C] in float64 on the device.
  struct Norms {
    at::Tensor lse, entropy;
  };
  struct Forward {
    Norms norms;
    at::Tensor log_prob;
  };

  [[nodiscard]] int64_t chunk_rows() const { return chunk_rows_; }
  [[nodiscard]] int64_t num_rows() const { return hidden_.size(0); }

  [[nodiscard]] Forward forward(int64_t begin, int64_t end) const {
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
    return {{lse, log_sum - shifted / sum}, target - lse};
  }

  // Writes the rows of d_hidden and adds to d_weight; either may be undefined. grad_entropy may be undefined.
  void backward(int64_t begin, int64_t end, const Norms& norms, const at::Tensor& grad, const at::Tensor& grad_entropy,
                const at::Tensor& d_hidden, const at::Tensor& d_weight) const {
    const at::ScalarType dtype = hidden_.scalar_type();
    const at::Tensor rows = hidden_.narrow(0, begin, end - begin);
    const at::Tensor lse = norms.lse.to(dtype).unsqueeze(1), g = grad.to(dtype).unsqueeze(1);
    at::Tensor d_rows;
    if (d_hidden.defined()) d_rows = d_hidden.narrow(0, begin, end - begin).zero_();
    for (int64_t first = 0; first < vocab_; first += kColumns) {
      const at::Tensor capped = logits(begin, end, first);
      const at::Tensor log_p = capped / temperature_ - lse;
      at::Tensor slope = -g;
      if (grad_entropy.defined())
        slope = slope - grad_entropy.to(dtype).unsqueeze(1) * (log_p + norms.entropy.to(dtype).unsqueeze(1));
      at::Tensor dz = at::exp(log_p) * slope;
      const Targets own = targets_in(begin, end, first);
      const at::Tensor more = at::where(own.is_here.unsqueeze(1), g, at::zeros_like(g));
      dz.scatter_(1, own.place, at::gather(dz, 1, own.place) + more);
      dz.div_(temperature_);
      if (softcap_ > 0.0) dz = dz * (1.0 - (capped / softcap_).square());
      const at::Tensor block = columns(weight_, first);
      if (d_rows.defined()) d_rows.addmm_(dz, block);
      if (d_weight.defined()) columns(d_weight, first).addmm_(dz.t(), rows);
    }
  }

 private:
  // Where the targets of a chunk are in a block. `place` is valid for all of them.
  struct Targets {
    at::Tensor is_here;  // [C]
    at::Tensor place;    // [C, 1]
  };

  [[nodiscard]] at::Tensor columns(const at::Tensor& matrix, int64_t first) const {
    return matrix.narrow(0, first, std::min(kColumns, vocab_ - first));
  }
  [[nodiscard]] at::Tensor logits(int64_t begin, int64_t end, int64_t first) const {
    return head_logits(hidden_.narrow(0, begin, end - begin), {columns(weight_, first), softcap_});
  }
  [[nodiscard]] Targets targets_in(int64_t begin, int64_t end, int64_t first) const {
    const int64_t count = std::min(kColumns, vocab_ - first);
    const at::Tensor place = targets_.narrow(0, begin, end - begin) - first;
    return {(place >= 0).logical_and(place < count), place.clamp(0, count - 1).unsqueeze(1)};
  }

  at::Tensor hidden_, weight_;
  double softcap_;
  at::Tensor targets_;
  double temperature_;
  int64_t vocab_;
  int64_t chunk_rows_ = 0;
};

// Host numbers [begin, end) on the device; undefined if there are none.
at::Tensor on_device(std::span<const double> values, int64_t begin, int64_t end, const at::Tensor& like) {
  if (values.empty()) return {};
  const at::Tensor host = at::empty({end - begin}, at::kDouble);
  std::copy(values.begin() + begin, values.begin() + end, host.mutable_data_ptr<double>());
  return host.to(like.device());
}

}  // namespace

LogProbs head_log_prob(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                       double temperature, bool want_entropy, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options);
  const at::TensorOptions host = at::TensorOptions().dtype(hidden_RH.scalar_type());
  LogProbs out;
  out.log_prob_R = at::empty({pass.num_rows()}, host);
  if (want_entropy) out.entropy_R = at::empty({pass.num_rows()}, host);
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const OperatorHead::Forward chunk = pass.forward(begin, end);
    out.log_prob_R.narrow(0, begin, end - begin).copy_(chunk.log_prob);
    if (want_entropy) out.entropy_R.narrow(0, begin, end - begin).copy_(chunk.norms.entropy);
    const std::vector<double> lse = host_doubles(chunk.norms.lse), entropy = host_doubles(chunk.norms.entropy);
    for (size_t i = 0; i < lse.size(); ++i) out.norms_R.push_back({lse[i], entropy[i]});
  }
  return out;
}

void head_second_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                      double temperature, std::span<const TokenNorm> norms_R, std::span<const double> grad_log_prob,
                      std::span<const double> grad_entropy, const at::Tensor& d_hidden_RH,
                      const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options);
  std::vector<double> lse, entropy;
  for (const TokenNorm& norm : norms_R) {
    lse.push_back(norm.lse);
    entropy.push_back(norm.entropy);
  }
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const auto there = [&](std::span<const double> values) { return on_device(values, begin, end, hidden_RH); };
    pass.backward(begin, end, {there(lse), there(entropy)}, there(grad_log_prob), there(grad_entropy), d_hidden_RH,
                  d_weight_VH);
  }
}

void head_one_pass(const at::Tensor& hidden_RH, const VocabularyHead& head, const at::Tensor& targets_R,
                   double temperature, EntropyUse entropy, const std::function<void(const HeadChunk&)>& on_chunk,
                   const at::Tensor& d_hidden_RH, const at::Tensor& d_weight_VH, const HeadOptions& options) {
  const OperatorHead pass(hidden_RH, head, targets_R, temperature, options);
  for (int64_t begin = 0; begin < pass.num_rows(); begin += pass.chunk_rows()) {
    const int64_t end = std::min(pass.num_rows(), begin + pass.chunk_rows());
    const OperatorHead::Forward chunk = pass.forward(begin, end);
    const std::vector<double> log_prob = host_doubles(chunk.log_prob);
    std::vector<double> entropies;
    if (entropy != EntropyUse::kNone) entropies = host_doubles(chunk.norms.entropy);
    std::vector<double> grad(log_prob.size(), 0.0);
    std::vector<double> grad_entropy(entropy == EntropyUse::kGradient ? grad.size() : 0, 0.0);
    on_chunk({begin, end, log_prob, entropies, grad, grad_entropy});
    if (any_nonzero(grad) || any_nonzero(grad_entropy)) {
      const int64_t rows = end - begin;
      pass.backward(begin, end, chunk.norms, on_device(grad, 0, rows, hidden_RH),
                    on_device(grad_entropy, 0, rows, hidden_RH), d_hidden_RH, d_weight_VH);
    } else if (d_hidden_RH.defined()) {
      d_hidden_RH.narrow(0, begin, end - begin).zero_();
    }
  }
}

}  // namespace mortise::by_operators
