// See router.h.
#include "model/layers/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x as it is; backward adds `more` to its gradient.
class AddGradient : public torch::autograd::Function<AddGradient> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& more) {
    ctx->save_for_backward({more});
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] + ctx->get_saved_variables()[0], at::Tensor()};
  }
};

// The same for probabilities; `more` is weight times balance, as both are when backward runs.
class AddBalance : public torch::autograd::Function<AddBalance> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& probs_NE, const at::Tensor& weight_N,
                            const at::Tensor& balance_E) {
    ctx->saved_data["weight"] = weight_N;
    ctx->saved_data["balance"] = balance_E;  // not a saved variable: it may still be filled in
    return probs_NE.view_as(probs_NE);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor weight = ctx->saved_data["weight"].toTensor(), balance = ctx->saved_data["balance"].toTensor();
    const at::Tensor more = weight.unsqueeze(1) * balance.unsqueeze(0);
    return {grads[0] + more.to(grads[0].options()), at::Tensor(), at::Tensor()};
  }
};

at::Tensor choose(const at::Tensor& logits_NE, const MoeConfig& moe, int64_t layer, const RouterPass* pass) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = logits_NE.detach();
  const at::Tensor scores = moe.is_gpt_oss ? logits : at::softmax(logits, 1, at::kFloat);
  at::Tensor chosen = std::get<1>(at::topk(scores, moe.experts_per_token, 1));
  if (pass != nullptr && pass->given_LNK.defined()) {
    const at::Tensor given = pass->given_LNK.select(0, layer).to(chosen.device());
    chosen = at::where(given.narrow(1, 0, 1) >= 0, given, chosen);
  }
  return std::get<0>(at::sort(chosen, 1));
}

// Writes rather than adds: a layer that is computed again in backward tells the same once more.
void tell(const at::Tensor& logits_NE, const at::Tensor& probs_NE, const at::Tensor& experts_NK, int64_t layer,
          const RouterPass& pass) {
  const at::NoGradGuard no_grad;
  pass.taken_LNK.select(0, layer).copy_(experts_NK);
  const at::TensorOptions real = logits_NE.options().dtype(at::kDouble);
  const at::Tensor weight =
      pass.weight_N.defined() ? pass.weight_N.to(real) : at::ones({logits_NE.size(0)}, real.requires_grad(false));
  const at::Tensor probs = probs_NE.detach().to(at::kDouble);
  const at::Tensor taken = at::zeros(probs.sizes(), probs.options()).scatter_(1, experts_NK, 1.0);
  pass.count_LE.select(0, layer).copy_(at::mv(taken.t(), weight));
  pass.probs_LE.select(0, layer).copy_(at::mv(probs.t(), weight));
  const at::Tensor z = at::logsumexp(logits_NE.detach().to(at::kDouble), {1});
  pass.z_L.select(0, layer).copy_(at::sum(z * z * weight));
}

}  // namespace

void make_room(const ModelConfig& config, int64_t num_tokens, RouterPass& pass) {
  const int64_t layers = config.num_expert_layers();
  const at::TensorOptions real = at::TensorOptions().dtype(at::kDouble);
  pass.records = true;
  pass.taken_LNK = at::full({layers, num_tokens, config.moe.experts_per_token}, -1, at::kLong);
  pass.count_LE = at::zeros({layers, config.moe.num_experts}, real);
  pass.probs_LE = at::zeros({layers, config.moe.num_experts}, real);
  pass.z_L = at::zeros({layers}, real);
}

std::vector<uint16_t> experts_of(const RouterPass& pass, int64_t begin, int64_t length) {
  const int64_t layers = pass.taken_LNK.size(0), tokens = pass.taken_LNK.size(1), k = pass.taken_LNK.size(2);
  const int64_t* const taken = pass.taken_LNK.const_data_ptr<int64_t>();
  std::vector<uint16_t> out;
  out.reserve(static_cast<size_t>(length * layers * k));
  for (int64_t n = begin; n < begin + length; ++n) {
    for (int64_t l = 0; l < layers; ++l) {
      for (int64_t i = 0; i < k; ++i) out.push_back(static_cast<uint16_t>(taken[(l * tokens + n) * k + i]));
    }
  }
  return out;
}

Routing route(at::Tensor logits, const MoeConfig& moe, int64_t layer, RouterPass* pass) {
  const bool has_losses = pass != nullptr && pass->weight_N.defined();
  if (has_losses && pass->z_factor != 0.0) {
    const at::Tensor plain = logits.detach();
    const at::Tensor slope = at::logsumexp(plain, {1}) * pass->weight_N.to(plain.options()) * (2.0 * pass->z_factor);
    logits = AddGradient::apply(logits, slope.unsqueeze(1) * at::softmax(plain, 1));
  }
  at::Tensor probs = at::softmax(logits, 1);
  const at::Tensor experts = choose(logits, moe, layer, pass);
  if (pass != nullptr && pass->records) tell(logits, probs, experts, layer, *pass);
  if (has_losses && pass->balance_E.defined()) probs = AddBalance::apply(probs, pass->weight_N, pass->balance_E);
  at::Tensor weights = at::gather(probs, 1, experts);
  if (moe.normalizes) weights = weights / at::sum(weights, {1}, /*keepdim=*/true);
  return {experts, weights};
}

}  // namespace mortise
