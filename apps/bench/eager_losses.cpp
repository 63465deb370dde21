// The policy losses in eager torch operators, one function per loss.
#include "eager_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mortise {
namespace {

using at::Tensor;

Tensor log_ratio(const EagerBatch& b) { return (b.log_prob - b.old_log_prob).clamp(-20.0, 20.0); }
Tensor ratio(const EagerBatch& b) { return log_ratio(b).exp(); }

Tensor clipped(const EagerBatch& b, const Tensor& r) {
  return (-b.advantages * r).maximum(-b.advantages * r.clamp(0.8, 1.2));
}
Tensor row_sum(const EagerBatch& b, const Tensor& x) { return (x * b.mask).sum(-1); }
Tensor row_mean(const EagerBatch& b, const Tensor& x) { return row_sum(b, x) / b.mask.sum(-1).clamp_min(1.0); }
Tensor over_rows(const EagerBatch& b, const Tensor& row) { return row.unsqueeze(-1).expand_as(b.mask); }

Tensor vanilla(const EagerBatch& b) {
  const Tensor loss = clipped(b, ratio(b));
  return loss.minimum(-b.advantages * 3.0).where(b.advantages < 0, loss);
}

// verl's token form: the row's ratio, each token's own gradient.
Tensor token_form(const EagerBatch& b, double cap) {
  const Tensor mean = over_rows(b, row_mean(b, b.log_prob - b.old_log_prob)).detach();
  return clipped(b, (b.log_prob - b.log_prob.detach() + mean).clamp_max(cap).exp());
}
Tensor gspo(const EagerBatch& b) { return token_form(b, 10.0); }
Tensor gspo_token(const EagerBatch& b) { return token_form(b, 20.0); }
Tensor luspo(const EagerBatch& b) {
  const Tensor s = row_mean(b, b.log_prob - b.old_log_prob).clamp_max(20.0).exp();
  return clipped(b, s.unsqueeze(-1));
}

Tensor sapo(const EagerBatch& b) {
  const Tensor tau = (b.advantages > 0).to(at::kFloat) * -0.05 + 1.05;
  return -b.advantages * (tau * (ratio(b) - 1.0)).sigmoid() * 4.0 / tau;
}

Tensor cispo(const EagerBatch& b) { return -ratio(b).clamp(0.8, 1.2).detach() * b.advantages * b.log_prob; }

Tensor geo_mean(const EagerBatch& b) {
  const Tensor d = b.log_prob - b.old_log_prob, sign = b.advantages.sign();
  const Tensor held = sign * (sign * d).minimum(sign * d.clamp(-0.2, 0.2));
  return over_rows(b, -row_mean(b, b.advantages) * row_mean(b, held).exp());
}

Tensor policy_gradient(const EagerBatch& b) { return -b.advantages * b.log_prob; }

Tensor covariance(const EagerBatch& b) {
  const Tensor tokens = b.mask.sum(), logp = b.log_prob.detach();
  return (b.advantages - (b.advantages * b.mask).sum() / tokens) * (logp - (logp * b.mask).sum() / tokens);
}
int64_t share(const EagerBatch& b, double part) {
  return std::max<int64_t>(1, static_cast<int64_t>(part * b.mask.sum().item<double>()));
}

Tensor clip_cov(const EagerBatch& b) {
  const Tensor r = ratio(b), loss = clipped(b, r), cov = covariance(b), held = r.detach();
  const Tensor by_ppo = ((b.advantages > 0) & (held > 1.2)) | ((b.advantages < 0) & (held < 0.8));
  const Tensor found = ((cov > 1.0) & (cov < 5.0) & (b.mask > 0) & ~by_ppo).flatten().nonzero().squeeze(-1);
  const Tensor drawn = found.index_select(0, at::randperm(found.size(0), at::kLong));
  Tensor kept = b.mask.new_ones({b.mask.numel()});
  kept.index_fill_(0, drawn.slice(0, 0, share(b, 2e-4)), 0.0);
  return loss * kept.view_as(b.mask);
}

Tensor kl_cov(const EagerBatch& b) {
  const Tensor cov = covariance(b).masked_fill(b.mask == 0, -std::numeric_limits<double>::infinity()).flatten();
  const Tensor largest = std::get<1>(cov.topk(share(b, 2e-4)));
  Tensor chosen = b.mask.new_zeros({b.mask.numel()});
  chosen.index_fill_(0, largest, 0.1);
  return -b.advantages * ratio(b) + chosen.view_as(b.mask) * (b.log_prob - b.old_log_prob).abs();
}

Tensor dppo(const EagerBatch& b, const Tensor& keep) {
  return -b.advantages * ratio(b).clamp_max(3.0).detach() * keep.to(at::kFloat) * b.log_prob;
}
Tensor dppo_tv(const EagerBatch& b) {
  const Tensor moved = b.log_prob.detach().exp() - b.old_log_prob.exp();
  return dppo(b, ((b.advantages > 0) & (moved <= 0.2)) | ((b.advantages <= 0) & (moved >= -0.2)));
}
Tensor dppo_kl(const EagerBatch& b) {
  const Tensor lp = b.log_prob.detach(), p = lp.exp(), p_old = b.old_log_prob.exp();
  const Tensor others = (-p_old + 1.0) * ((-p_old + (1.0 + 1e-8)) / (-p + (1.0 + 1e-8))).log();
  const Tensor near = p_old * (b.old_log_prob - lp) + others <= 0.2;
  return dppo(b, near | ((b.advantages > 0) & (p <= p_old)) | ((b.advantages <= 0) & (p >= p_old)));
}

Tensor dro(const EagerBatch& b) { return -(b.advantages * b.log_prob - (b.log_prob - b.old_log_prob).square() * 0.15); }

Tensor vespo(const EagerBatch& b) {
  const Tensor s = row_sum(b, log_ratio(b).detach()).clamp(std::log(1e-8), 20.0), w = s.exp();
  const Tensor positive = over_rows(b, (s * 2.0 + 3.0 - w * 3.0).exp());
  const Tensor negative = over_rows(b, (s * 3.0 + 2.0 - w * 2.0).exp());
  return -positive.where(b.advantages >= 0, negative) * b.advantages * b.log_prob;
}

Tensor fipo(const EagerBatch& b) {
  // The discounted sum of what follows, as a product with the matrix of the discounts.
  const Tensor place = at::arange(b.mask.size(1), at::kFloat);
  const Tensor distance = place.unsqueeze(1) - place.unsqueeze(0);
  const Tensor discount = (distance * (-std::log(2.0) / 32.0)).exp() * (distance >= 0).to(at::kFloat);
  const Tensor future = ((b.log_prob - b.old_log_prob).detach() * b.mask).matmul(discount);
  const Tensor r = ratio(b), influence = future.clamp(-20.0, 20.0).exp().clamp(1.0, 1.2);
  const Tensor unsafe = (b.advantages < 0) & (r.detach() > 4.0);
  return influence.clamp(0.8, 1.0).where(unsafe, influence) * clipped(b, r);
}

Tensor real(const EagerBatch& b) {
  const Tensor s = row_mean(b, b.log_prob - b.old_log_prob).view({-1, b.rows_per_prompt}) / 0.5;
  const Tensor good = (row_mean(b, b.advantages) > 0).view({-1, b.rows_per_prompt}).to(at::kFloat);
  const Tensor bad = -good + 1.0;
  const Tensor loss = (bad * s.exp()).sum(-1).log1p() + (good * (-s).exp()).sum(-1).log1p();
  const Tensor both = (good.sum(-1) > 0) & (bad.sum(-1) > 0);
  return over_rows(b, (loss * both.to(at::kFloat)).unsqueeze(-1).expand_as(s).flatten());
}

Tensor topr(const EagerBatch& b) {
  const Tensor tapered = row_sum(b, (b.log_prob - b.rollout_log_prob).detach()).clamp_max(0.0).exp();
  return -over_rows(b, tapered).masked_fill(b.advantages >= 0, 1.0) * b.advantages * b.log_prob;
}

Tensor aipo(const EagerBatch& b) {
  const Tensor r = (b.log_prob - b.rollout_log_prob).clamp(-20.0, 20.0).exp();
  return -r.clamp_max(2.0).detach() * b.advantages * b.log_prob;
}

// The squares in rising order, up to where their mean reaches 0.04.
Tensor m2po(const EagerBatch& b) {
  const Tensor square = (b.log_prob - b.old_log_prob).detach().square();
  const Tensor sorted = std::get<0>(square.masked_select(b.mask > 0).sort());
  const Tensor count = at::arange(1, sorted.numel() + 1, at::kFloat);
  const int64_t stay = (sorted.cumsum(0) / count < 0.04).sum().item<int64_t>();
  const Tensor kept = square <= sorted.select(0, std::max<int64_t>(stay, 1) - 1);
  return -b.advantages * ratio(b) * kept.to(at::kFloat);
}

Tensor decoupled(const EagerBatch& b) {
  return (b.old_log_prob - b.rollout_log_prob).clamp(-20.0, 20.0).exp() * clipped(b, ratio(b));
}

}  // namespace

std::vector<EagerLoss> eager_losses() {
  return {{"vanilla", vanilla},     {"cispo", cispo},
          {"sapo", sapo},           {"dppo_tv", dppo_tv},
          {"dppo_kl", dppo_kl},     {"dro", dro},
          {"gpg", policy_gradient}, {"reinforce", policy_gradient},
          {"aipo", aipo},           {"decoupled", decoupled},
          {"gspo", gspo},           {"gspo_token", gspo_token},
          {"luspo", luspo},         {"geo_mean", geo_mean},
          {"vespo", vespo, 1e-3},  // a sum of a thousand log ratios, in float32 there
          {"fipo", fipo},           {"topr", topr, 1e-3},
          {"real", real},           {"clip_cov", clip_cov, 5e-3},  // another draw
          {"kl_cov", kl_cov, 1e-3}, {"m2po", m2po, 1e-3}};
}

}  // namespace mortise
