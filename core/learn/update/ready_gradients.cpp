// Counts the gradients that autograd stores.
#include "learn/update/ready_gradients.h"

#include <ATen/core/Tensor.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace mortise {
namespace {

class CallWhenStored : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CallWhenStored(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const at::Tensor&) override { call_(); }

 private:
  std::function<void()> call_;
};

// One backward pass.
class Pass {
 public:
  Pass(std::span<const OptimizedParameter> parameters, const std::vector<ParameterRange>& groups,
       const ReadyGradients::OnGroup& on_group)
      : parameters_(parameters), on_group_(&on_group), is_stored_(parameters.size()) {
    for (size_t group = 0; group < groups.size(); ++group) {
      size_t& missing = missing_.emplace_back(0);
      for (size_t i = groups[group].begin; i < groups[group].end; ++i) {
        if (is_complete_before_backward(parameters[i])) continue;
        ++missing;
        set_hook(i, std::make_unique<CallWhenStored>([this, i, group] { store(i, group); }));
      }
    }
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() {
    for (size_t i = 0; i < parameters_.size(); ++i) set_hook(i, nullptr);
  }

  void tell_complete() {
    while (next_ < missing_.size() && missing_[next_] == 0) tell();
  }
  Result<> tell_rest() {
    while (next_ < missing_.size()) tell();
    return std::move(status_);
  }

 private:
  void set_hook(size_t i, std::unique_ptr<torch::autograd::PostAccumulateGradHook> hook) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor, std::move(hook));
  }
  void store(size_t i, size_t group) {
    if (group < next_) {
      if (status_.ok())
        status_ = Error{ErrorKind::kInternal,
                        fmt::format("the gradient of {} has changed after it was sent", parameters_[i].name), "",
                        "set trainer.deterministic = true, which sends no gradient before the end, and report this"};
      return;
    }
    if (is_stored_[i]) return;
    is_stored_[i] = true;
    --missing_[group];
    tell_complete();
  }
  void tell() {
    const size_t group = next_++;
    if (status_.ok()) status_ = (*on_group_)(group);
  }

  std::span<const OptimizedParameter> parameters_;
  const ReadyGradients::OnGroup* on_group_;
  std::vector<bool> is_stored_;
  std::vector<size_t> missing_;  // gradients, by group
  size_t next_ = 0;              // the group that is told next
  Result<> status_;
};

}  // namespace

ReadyGradients::ReadyGradients(std::span<const OptimizedParameter> parameters, std::vector<ParameterRange> groups)
    : parameters_(parameters), groups_(std::move(groups)) {}

Result<> ReadyGradients::run(const std::function<void()>& backward, const OnGroup& on_group) const {
  Pass pass(parameters_, groups_, on_group);
  pass.tell_complete();
  backward();
  return pass.tell_rest();
}

}  // namespace mortise
