// Steps what this rank has of the parameters, and shares the new weights.
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <numeric>

#include "foundation/metrics/op_timer.h"
#include "learn/optim/group_step.h"
#include "learn/optim/kernel_step.h"
#include "learn/optim/optimizer.h"
#include "learn/optim/resting_state.h"
#include "learn/optim/rounded_step.h"
#include "learn/optim/state_in_files.h"
#include "learn/optim/weight_shards.h"

namespace mortise {

namespace {

// It reads and writes the weights and what the rule keeps, and reads the gradient.
OpWork step_work(std::span<const StepPart> parts) {
  OpWork work;
  for (const StepPart& part : parts)
    work.bytes += (2.0 * static_cast<double>(part.state.size()) + 3.0) * static_cast<double>(part.weights.nbytes());
  return work;
}

}  // namespace

std::vector<at::Tensor> Optimizer::weights_of(std::span<const size_t> parts) const {
  std::vector<at::Tensor> out;
  for (const size_t i : parts) out.push_back(weights_of(parts_[i]));
  return out;
}

std::vector<StepPart> Optimizer::parts_to_step(std::span<const size_t> indices, std::span<const at::Tensor> weights,
                                               double lr, std::vector<size_t>& stepped) const {
  std::vector<StepPart> parts;
  for (size_t at = 0; at < indices.size(); ++at) {
    const size_t i = indices[at];
    const OptimizedParameter& parameter = parameters_[parts_[i].parameter];
    at::Tensor gradient = gradient_of(parts_[i]);
    if (!gradient.defined()) continue;
    const double decay = parameter.weight_decay.value_or(parameter.decay ? weight_decay_ : 0.0);
    parts.push_back({&parameter, weights[at], std::move(gradient), state_[i], lr * parameter.lr_scale, decay});
    stepped.push_back(i);
  }
  return parts;
}

Result<> Optimizer::step_parts(std::span<const size_t> indices, std::span<const at::Tensor> weights, double lr,
                               double grad_factor) {
  std::vector<size_t> stepped, places;
  std::vector<StepPart> parts = parts_to_step(indices, weights, lr, stepped);
  for (const size_t i : stepped) places.push_back(parts_[i].parameter);
  const OpTimer timer("optimizer", [&] { return step_work(parts); });
  if (group_ == nullptr) {
    run_rule(parts, grad_factor);
    return {};
  }
  return group_->step(
      parts, places, [&](std::span<StepPart> some) { run_rule(some, grad_factor); },
      [&](const at::Tensor& done) {
        if (files_ != nullptr) files_->release(done);
      });
}

void Optimizer::run_rule(std::span<StepPart> parts, double grad_factor) const {
  if (files_ == nullptr) {
    if (!parts.empty()) rule_->step(parts, num_updates_, grad_factor);
    return;
  }
  for (StepPart& part : parts) {
    StateInFiles state(part, *files_);
    rule_->step({&part, 1}, num_updates_, grad_factor);
    state.put_back();
  }
  files_->finish();
}

namespace {

// Those of one type travel together.
Result<> gather_new_weights(Communicator& communicator, const Shards& shards, std::span<const at::Tensor> tensors) {
  std::map<at::ScalarType, std::vector<size_t>> by_type;
  for (size_t i = 0; i < tensors.size(); ++i) by_type[tensors[i].scalar_type()].push_back(i);
  for (const auto& [type, places] : by_type) {
    std::vector<at::Tensor> some;
    for (const size_t i : places) some.push_back(tensors[i]);
    const Shards cut = by_type.size() == 1 ? shards : shards.only(places);
    TRY(gather_tensors(communicator, cut, some, "new weights"));
  }
  return {};
}

}  // namespace

Result<> Optimizer::step(double lr, double grad_factor) {
  c10::NoGradGuard no_grad;
  count_open_step();
  ++num_updates_;
  if (resting_ != nullptr && !parameters_.empty()) resting_->fetch(state_, parameters_.front().tensor.device());
  if (rounded_ != nullptr && !is_sharded()) return step_layers(lr, grad_factor);
  if (rounded_ != nullptr) {
    for (size_t unit = 0; unit < units_.size(); ++unit) TRY(step_unit(unit, lr, grad_factor));
  } else {
    std::vector<size_t> all(parts_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    TRY(step_parts(all, weights_of(all), lr, grad_factor));
  }
  return share_weights();
}

// Every rank gets the new weights of the others, and the units' gradients are used up.
Result<> Optimizer::share_weights() {
  for (ShardUnit& unit : units_) {
    unit.own_gradient = at::Tensor();
    if (unit.part >= 0) continue;  // gathered by the passes that use them
    std::vector<at::Tensor> tensors;
    for (const size_t i : unit.parameters) {
      const at::Tensor& tensor = parameters_[i].tensor;
      tensors.push_back(rounded_ != nullptr ? rounded_->numbers(tensor) : tensor.detach());
    }
    TRY(gather_new_weights(*zero_.communicator, unit.shards, tensors));
  }
  return {};
}

Result<ClippedStep> Optimizer::step_clipped(double lr, double max_norm, const MasterCopies& copies) {
  const bool keeps_masters = rounded_ == nullptr && group_ == nullptr && zero_.tensor == nullptr;
  const DeviceKernels* const kernels = keeps_masters ? step_kernels(*rule_, parameters_) : nullptr;
  if (kernels != nullptr) return step_by_kernels(*kernels, lr, max_norm, is_sharded() ? MasterCopies() : copies);
  const double norm = TRY(grad_norm());
  if (std::isfinite(norm)) TRY(step(lr, clip_factor(norm, max_norm)));
  return ClippedStep{norm, false};
}

// The sums of squares of all ranks' parts lie in the order of the parameters, so that the norm has the same bits on any
// number of ranks. Ranks own whole blocks (shards.h), so that no part of a step belongs to two of them.
static_assert(Shards::kBlock % MORTISE_CUDA_STEP_PART == 0);
Result<ClippedStep> Optimizer::step_by_kernels(const DeviceKernels& kernels, double lr, double max_norm,
                                               const MasterCopies& copies) {
  c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard own_device(parameters_.front().tensor.device());
  if (resting_ != nullptr) resting_->fetch(state_, parameters_.front().tensor.device());
  std::vector<size_t> all(parts_.size()), stepped;
  std::iota(all.begin(), all.end(), size_t{0});
  std::vector<StepPart> parts = parts_to_step(all, weights_of(all), lr, stepped);
  std::vector<int64_t> first_sums{0};  // by parameter
  for (const OptimizedParameter& one : parameters_)
    first_sums.push_back(first_sums.back() + KernelStep::num_parts(one.tensor.numel()));
  std::vector<int64_t> part_sums;
  for (const size_t i : stepped)
    part_sums.push_back(first_sums[parts_[i].parameter] + KernelStep::num_parts(parts_[i].begin));
  const OpTimer timer("optimizer", [&] { return step_work(parts); });
  KernelStep step(kernels, parameters_.front().tensor.device(), parts, part_sums, first_sums.back(), copies,
                  files_ != nullptr);
  if (is_sharded()) TRY(zero_.communicator->all_reduce_sum(step.square_sums(), "gradient norm"));
  step.clip(max_norm);
  const StepNorm norm = step.norm();
  count_open_step();  // the device computed it before this update's passes, so the host hardly waits
  step.run(*rule_->as_adamw(), num_updates_ + 1, files_.get());
  open_ = norm;
  TRY(share_weights());
  return ClippedStep{norm, !copies.empty()};
}

void Optimizer::count_open_step() const {
  if (open_ && open_->is_finite()) ++num_updates_;
  open_.reset();
}

// Steps a model without masters. Without shards a part is a parameter.
Result<> Optimizer::step_layers(double lr, double grad_factor) {
  for (size_t group = 0; group < rounded_->groups().size(); ++group) {
    const std::vector<size_t>& parts = rounded_->groups()[group];
    if (parts.empty()) continue;  // frozen
    rounded_->open(group);
    TRY(step_parts(parts, weights_of(parts), lr, grad_factor));
    rounded_->close(group, num_updates_);
  }
  return {};
}

// The same with shards: this rank's numbers of a unit are float32 while they are stepped. With spread weights that is a
// part of the model.
Result<> Optimizer::step_unit(size_t unit, double lr, double grad_factor) {
  std::vector<size_t> parts;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].unit == unit) parts.push_back(i);
  }
  const std::vector<at::Tensor> own = weights_of(parts);
  std::vector<at::Tensor> wide;
  for (const at::Tensor& weights : own) wide.push_back(weights.to(at::kFloat));  // itself if it is float32
  TRY(step_parts(parts, wide, lr, grad_factor));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (own[i].scalar_type() != at::kBFloat16) continue;
    const OwnPart& part = parts_[parts[i]];
    rounded_->round(parameters_[part.parameter].tensor, part.begin, wide[i], own[i], num_updates_);
  }
  return {};
}

}  // namespace mortise
