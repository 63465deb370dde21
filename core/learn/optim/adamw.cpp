// Calls libtorch's fused AdamW kernel, and saves and loads the moments.
#include "learn/optim/adamw.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "learn/optim/state_gather.h"
#include "learn/optim/tensor_state.h"

namespace mortise {

namespace {

constexpr const char* kMomentNames[] = {"exp_avg.", "exp_avg_sq."};

std::vector<int64_t> sizes_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<int64_t> sizes;
  for (const OptimizedParameter& parameter : parameters) sizes.push_back(parameter.tensor.numel());
  return sizes;
}

// A moment of one parameter, which lies on several ranks.
class MomentSource : public TensorSource {
 public:
  MomentSource(StateGather& gather, const AdamW& optimizer, int moment, int64_t begin, size_t element_bytes)
      : gather_(&gather), optimizer_(&optimizer), moment_(moment), begin_(begin), element_bytes_(element_bytes) {}

  Result<> read(uint64_t begin, std::span<std::byte> out) const override {
    const int64_t first = begin_ + static_cast<int64_t>(begin / element_bytes_);
    return gather_->read(*optimizer_, moment_, {first, first + static_cast<int64_t>(out.size() / element_bytes_)}, out);
  }

 private:
  StateGather* gather_;
  const AdamW* optimizer_;
  int moment_;
  int64_t begin_;  // of the parameter in the flat order
  size_t element_bytes_;
};

}  // namespace

AdamW::AdamW(std::vector<OptimizedParameter> parameters, const AdamWOptions& options, std::string state_name,
             const ZeroOptions& zero)
    : parameters_(std::move(parameters)), options_(options), state_name_(std::move(state_name)), zero_(zero) {
  c10::NoGradGuard no_grad;
  const std::vector<int64_t> sizes = sizes_of(parameters_);
  if (zero.stage > 0 && zero.communicator != nullptr && zero.communicator->size() > 1 && !sizes.empty()) {
    shards_.emplace(sizes, zero.communicator->size());
    parts_ = shards_->parts(own_range());
    for (const TensorPart& part : parts_) {
      for (auto& moment : moments_) moment.push_back(at::zeros({part.size}, parameters_[part.tensor].tensor.options()));
    }
    return;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parts_.push_back({i, 0, sizes[i]});
    for (auto& moment : moments_) moment.push_back(at::zeros_like(parameters_[i].tensor));
  }
}

at::Tensor AdamW::part_of(const at::Tensor& tensor, const TensorPart& part) const {
  return shards_ ? tensor.view({-1}).narrow(0, part.begin, part.size) : tensor;
}

// The gradient of parts_[part]; undefined if there is none.
at::Tensor AdamW::gradient_of(size_t part) const {
  const TensorPart& of = parts_[part];
  if (!shards_) return parameters_[of.tensor].tensor.grad();
  if (!own_gradient_.defined()) return {};
  return own_gradient_.narrow(0, shards_->begin_of(of.tensor) + of.begin - own_range().begin, of.size);
}

Result<> AdamW::step(double lr, double grad_factor) {
  c10::NoGradGuard no_grad;
  ++num_updates_;
  step_group(true, lr, grad_factor);
  step_group(false, lr, grad_factor);
  if (!shards_) return {};
  own_gradient_ = at::Tensor();
  std::vector<at::Tensor> tensors;
  for (const OptimizedParameter& parameter : parameters_) tensors.push_back(parameter.tensor.detach());
  return gather_tensors(*zero_.communicator, *shards_, tensors, "new weights");
}

void AdamW::step_group(bool decay, double lr, double grad_factor) {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const OptimizedParameter& parameter = parameters_[parts_[i].tensor];
    at::Tensor gradient = gradient_of(i);
    if (parameter.decay != decay || !gradient.defined()) continue;
    params.push_back(part_of(parameter.tensor.detach(), parts_[i]));
    grads.push_back(std::move(gradient));
    exp_avgs.push_back(moments_[0][i]);
    exp_avg_sqs.push_back(moments_[1][i]);
    steps.push_back(at::scalar_tensor(static_cast<double>(num_updates_), at::kFloat));
  }
  if (params.empty()) return;
  std::optional<at::Tensor> grad_scale;  // the kernel divides by it, which saves a pass over the gradients
  if (grad_factor != 1.0) {
    if (params.front().scalar_type() == at::kFloat)
      grad_scale = at::scalar_tensor(1.0 / grad_factor, at::kFloat);
    else
      at::_foreach_mul_(grads, grad_factor);  // the scale is float32 only, too coarse for float64 training
  }
  at::_fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, lr, options_.beta1, options_.beta2,
                    decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                    grad_scale);
}

void AdamW::zero_grad() {
  for (OptimizedParameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().zero_();
  }
}

namespace {

// One norm for each block of the tensors, in order.
std::vector<double> block_norms(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.reshape({-1});
    for (int64_t begin = 0; begin < flat.numel(); begin += Shards::kBlock)
      blocks.push_back(flat.narrow(0, begin, std::min(Shards::kBlock, flat.numel() - begin)));
  }
  std::vector<double> norms;
  if (blocks.empty()) return norms;
  for (const at::Tensor& norm : at::_foreach_norm(blocks)) norms.push_back(norm.item<double>());
  return norms;
}

double norm_of(std::span<const double> norms) {
  double sum_of_squares = 0.0;
  for (const double norm : norms) sum_of_squares += norm * norm;
  return std::sqrt(sum_of_squares);
}

}  // namespace

// A part begins and ends with blocks, so that the blocks of all ranks are those of the whole tensors.
Result<double> AdamW::grad_norm() const {
  if (!shards_) return global_grad_norm(parameters_);
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parts_.size(); ++i) gradients.push_back(gradient_of(i));
  const std::vector<double> own = block_norms(gradients);
  std::string bytes(own.size() * sizeof(double), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  std::string all;
  for (const std::string& one : TRY(zero_.communicator->exchange(bytes, "gradient norm"))) all += one;
  std::vector<double> norms(all.size() / sizeof(double));
  if (!all.empty()) std::memcpy(norms.data(), all.data(), all.size());
  return norm_of(norms);
}

at::Tensor AdamW::own_moment(int moment, const FlatRange& range) const {
  const at::Tensor out = at::empty({range.size()}, parameters_.front().tensor.options());
  int64_t at = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t begin = shards_->begin_of(parts_[i].tensor) + parts_[i].begin;
    const FlatRange both = range.within({begin, begin + parts_[i].size});
    if (both.size() == 0) continue;
    out.narrow(0, at, both.size())
        .copy_(moments_[static_cast<size_t>(moment)][i].narrow(0, both.begin - begin, both.size()));
    at += both.size();
  }
  return out;
}

Result<> AdamW::save_state(StateWriter& writer) const {
  writer.put_int("num_updates", num_updates_);
  if (shards_ && gather_ == nullptr)
    return Error{ErrorKind::kInternal, fmt::format("nothing gathers the sharded state of '{}'", state_name_), "", ""};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    for (int moment = 0; moment < 2; ++moment) {
      const std::string key = kMomentNames[moment] + parameters_[i].name;
      if (!shards_) {
        put_tensor(writer, key, moments_[static_cast<size_t>(moment)][i]);
        continue;
      }
      writer.put_source(
          key, dtype_of_tensor(tensor), tensor.sizes().vec(),
          std::make_shared<MomentSource>(*gather_, *this, moment, shards_->begin_of(i), tensor.element_size()));
    }
  }
  return {};
}

// Every rank reads all tensors of the checkpoint, which it maps, and copies its own parts.
Result<> AdamW::load_state(StateReader& reader) {
  num_updates_ = TRY(reader.get_int("num_updates"));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    for (size_t moment = 0; moment < 2; ++moment) {
      const TensorView view = TRY(
          reader.get_tensor(kMomentNames[moment] + parameters_[i].name, dtype_of_tensor(tensor), tensor.sizes().vec()));
      const auto element = static_cast<int64_t>(tensor.element_size());
      for (size_t part = 0; part < parts_.size(); ++part) {
        if (parts_[part].tensor != i) continue;
        const auto bytes = view.bytes.subspan(static_cast<size_t>(parts_[part].begin * element),
                                              static_cast<size_t>(parts_[part].size * element));
        if (!bytes.empty()) std::memcpy(moments_[moment][part].mutable_data_ptr(), bytes.data(), bytes.size());
      }
    }
  }
  return {};
}

void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters) {
  for (const OptimizedParameter& parameter : parameters) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.tensor.detach());
  }
}

double global_grad_norm(const std::vector<OptimizedParameter>& parameters) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.tensor.grad().defined()) grads.push_back(parameter.tensor.grad());
  }
  return norm_of(block_norms(grads));
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

}  // namespace mortise
