// See router_losses.h.
#include "learn/update/router_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plugin/worker/channel.h"

namespace mortise {

namespace {

at::Tensor double_zeros(std::initializer_list<int64_t> sizes) {
  return at::zeros(at::IntArrayRef(sizes), at::TensorOptions().dtype(at::kDouble));
}

std::string bytes_of(const at::Tensor& values) {
  const at::Tensor plain = values.contiguous();
  Encoder out;
  for (int64_t i = 0; i < plain.numel(); ++i) out.f64(plain.const_data_ptr<double>()[i]);
  return out.bytes();
}

Result<> add_bytes(std::string_view bytes, const at::Tensor& sum) {
  Decoder in(bytes);
  auto* const values = sum.mutable_data_ptr<double>();
  for (int64_t i = 0; i < sum.numel(); ++i) values[i] += in.f64();
  if (in.done()) return {};
  return Error{ErrorKind::kInternal, "the counts of another rank's experts cannot be read", "", ""};
}

}  // namespace

RouterLosses::RouterLosses(const Model& model, const StepTable& table, std::span<const int64_t> rows,
                           const LearnerOptions& options)
    : model_(&model), table_(&table) {
  const ModelConfig& config = model.config();
  if (config.num_expert_layers() == 0) return;
  aux_coef_ = options.router_losses.aux_coef.value_or(config.moe.aux_loss_coef);
  z_coef_ = options.router_losses.z_coef;
  if (aux_coef_ == 0.0 && z_coef_ == 0.0) return;
  for (const int64_t row : rows) {
    if (table.row_tokens(row) == 0) continue;
    num_tokens_ += static_cast<double>(table.row(row).prompt_ids.size()) + static_cast<double>(table.row_tokens(row));
  }
  num_tokens_ *= static_cast<double>(config.num_expert_layers());
  if (num_tokens_ == 0.0) return;
  RouterTerms terms;
  terms.z_factor = z_coef_ / num_tokens_;
  if (aux_coef_ != 0.0) terms.balance_E = double_zeros({config.moe.num_experts});
  terms_ = std::make_shared<const RouterTerms>(std::move(terms));
}

// d balance / d probability of expert e = E C_e / M^2.
void RouterLosses::set_balance(const at::Tensor& count_E) {
  const auto experts = static_cast<double>(count_E.numel());
  terms_->balance_E.copy_(count_E * (aux_coef_ * experts / (num_tokens_ * num_tokens_)));
  is_counted_ = true;
}

Result<> RouterLosses::count(const MicroPlan& plan, const RankShare& share, const PassOptions& pass) {
  if (!is_on() || !terms_->balance_E.defined() || plan.size() < 2) return {};
  const c10::NoGradGuard no_grad;
  std::vector<std::string> parts(plan.size());
  for (const std::optional<size_t>& micro : share.rounds()) {
    if (micro && *micro < plan.size()) {  // the share may have micro-batches of other rows too
      const PackedForward forward = TRY(forward_rows(*model_, *table_, plan[*micro], pass));
      const at::Tensor count_E = at::sum(forward.routing->count_LE, {0});
      forward.targets.sum(count_E);
      parts[*micro] = bytes_of(count_E);
      show_micro_batch("router counts", *micro, plan.size());
    }
    TRY(finish_forward({model_}));
  }
  TRY(share.exchange(parts, "counts of experts"));
  const at::Tensor count_E = double_zeros({model_->config().moe.num_experts});
  for (const std::string& part : parts) TRY(add_bytes(part, count_E));
  set_balance(count_E);
  return {};
}

void RouterLosses::note(const PackedForward& forward, LeafReport& leaf) {
  if (!is_on()) return;
  const RouterPass& pass = *forward.routing;
  const at::Tensor told =
      at::cat({pass.count_LE.reshape({-1}), at::sum(pass.probs_LE, {0}), at::sum(pass.z_L).reshape({1})});
  forward.targets.sum(told);
  if (terms_->balance_E.defined() && !is_counted_)
    set_balance(at::sum(told.narrow(0, 0, pass.count_LE.numel()).view(pass.count_LE.sizes()), {0}));
  const std::span<const double> values(told.const_data_ptr<double>(), static_cast<size_t>(told.numel()));
  leaf.router.assign(values.begin(), values.end());
}

void RouterLosses::report(std::span<const LeafReport> leaves, double& loss, MetricSet& metrics) const {
  if (!is_on()) return;
  const auto experts = static_cast<size_t>(model_->config().moe.num_experts);
  const auto layers = static_cast<size_t>(model_->config().num_expert_layers());
  std::vector<double> sums(layers * experts + experts + 1, 0.0);  // counts by layer, probabilities, z
  for (const LeafReport& leaf : leaves) {
    for (size_t i = 0; i < leaf.router.size(); ++i) sums[i] += leaf.router[i];
  }
  const std::span<const double> count = std::span(sums).first(layers * experts);
  double balance = 0.0;
  for (size_t i = 0; i < count.size(); ++i) balance += count[i] * sums[layers * experts + i % experts];
  balance *= static_cast<double>(experts) / (num_tokens_ * num_tokens_);
  const double z = sums.back() / num_tokens_;
  loss += aux_coef_ * balance + z_coef_ * z;
  if (aux_coef_ != 0.0) metrics.add_mean("actor/router_aux_loss", balance, 1.0);
  if (z_coef_ != 0.0) metrics.add_mean("actor/router_z_loss", z, 1.0);
  // 1: the expert got as many tokens as in an even spread over the layer's experts.
  const double even = num_tokens_ / static_cast<double>(layers) *
                      static_cast<double>(model_->config().moe.experts_per_token) / static_cast<double>(experts);
  const auto [least, most] = std::ranges::minmax(count);
  metrics.add("actor/expert_load/min", least / even);
  metrics.add("actor/expert_load/max", most / even);
}

}  // namespace mortise
