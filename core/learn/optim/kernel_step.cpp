// See kernel_step.h.
#include "learn/optim/kernel_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "learn/optim/state_in_files.h"

namespace mortise {

namespace {

// Where the copy of these weights begins; null if they have none.
uint16_t* copy_of(const at::Tensor& weights, const MasterCopies& copies) {
  const auto found = copies.find(weights.storage().unsafeGetStorageImpl());
  if (found == copies.end()) return nullptr;
  return static_cast<uint16_t*>(found->second.mutable_data_ptr()) + weights.storage_offset();
}

void use_numbers(MortiseCudaStepTensor& row, const StepPart& part) {
  row.master = part.weights.mutable_data_ptr<float>();
  row.exp_avg = part.state[0].mutable_data_ptr<float>();
  row.exp_avg_sq = part.state[1].mutable_data_ptr<float>();
}

at::Tensor table_on(const c10::Device& device, std::span<const MortiseCudaStepTensor> rows) {
  const auto row_bytes = static_cast<int64_t>(sizeof(MortiseCudaStepTensor));
  const at::Tensor host = at::empty({std::ssize(rows), row_bytes}, at::kByte);
  std::memcpy(host.mutable_data_ptr(), rows.data(), rows.size_bytes());
  return sent_to(device, host);
}

const MortiseCudaStepTensor* rows_of(const at::Tensor& table) {
  return static_cast<const MortiseCudaStepTensor*>(table.const_data_ptr());
}

}  // namespace

const DeviceKernels* step_kernels(const UpdateRule& rule, std::span<const OptimizedParameter> parameters) {
  if (rule.as_adamw() == nullptr || parameters.empty()) return nullptr;
  const bool is_float = std::ranges::all_of(
      parameters, [](const OptimizedParameter& one) { return one.tensor.scalar_type() == at::kFloat; });
  return is_float ? device_kernels(parameters.front().tensor.device()) : nullptr;
}

KernelStep::KernelStep(const DeviceKernels& kernels, const c10::Device& device, std::span<StepPart> parts,
                       std::span<const int64_t> first_sums, int64_t num_sums, const MasterCopies& copies, bool in_files)
    : kernels_(&kernels), parts_(parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    StepPart& part = parts[i];
    part.gradient = part.gradient.contiguous();
    rows_.push_back({part.gradient.const_data_ptr<float>(), nullptr, nullptr, nullptr, copy_of(part.weights, copies),
                     part.weights.numel(), num_parts_, first_sums[i], static_cast<float>(part.lr),
                     static_cast<float>(part.weight_decay)});
    if (!in_files) use_numbers(rows_.back(), part);
    num_parts_ += num_parts(part.weights.numel());
  }
  table_ = table_on(device, rows_);
  const at::TensorOptions there = at::TensorOptions().device(device);
  sums_ = at::zeros({num_sums}, there.dtype(at::kDouble));
  clip_ = at::empty({2}, there.dtype(at::kFloat));
  check_started(kernels.square_sums(rows_of(table_), std::ssize(rows_), num_parts_, sums_.mutable_data_ptr<double>(),
                                    stream_of(device)),
                "square_sums");
}

void KernelStep::clip(double max_norm) {
  check_started(kernels_->clip(sums_.const_data_ptr<double>(), sums_.numel(), static_cast<float>(max_norm),
                               clip_.mutable_data_ptr<float>(), stream_of(clip_.device())),
                "clip");
}

void KernelStep::run(const AdamWOptions& options, int64_t update, const Offload* files) {
  const auto count = static_cast<double>(update);
  const MortiseCudaAdamW settings{static_cast<float>(options.beta1),
                                  static_cast<float>(1.0 - options.beta1),
                                  static_cast<float>(options.beta2),
                                  static_cast<float>(1.0 - options.beta2),
                                  static_cast<float>(options.eps),
                                  static_cast<float>(1.0 - std::pow(options.beta1, count)),
                                  static_cast<float>(std::sqrt(1.0 - std::pow(options.beta2, count)))};
  if (files == nullptr) start(settings, table_, num_parts_);
  for (size_t i = 0; files != nullptr && i < parts_.size(); ++i) {
    StateInFiles state(parts_[i], *files);
    MortiseCudaStepTensor row = rows_[i];
    row.first_part = 0;
    use_numbers(row, parts_[i]);
    start(settings, table_on(clip_.device(), {&row, 1}), num_parts(row.count));
    state.put_back();
  }
  if (files != nullptr) files->finish();
  for (const StepPart& part : parts_) part.weights.unsafeGetTensorImpl()->bump_version();
}

void KernelStep::start(const MortiseCudaAdamW& settings, const at::Tensor& table, int64_t num_parts) const {
  check_started(kernels_->adamw(settings, rows_of(table), table.size(0), num_parts, clip_.const_data_ptr<float>(),
                                stream_of(clip_.device())),
                "adamw");
}

}  // namespace mortise
