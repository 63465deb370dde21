// AdamW (Loshchilov and Hutter, 2019) over a list of parameters, by libtorch's fused kernel: one pass over parameter,
// gradient and both moments. Bias-corrected; eps is added to the root; decay only on parameters that ask for it.
//
// Moments have the dtype of their parameter. State (moments and the update count) goes into checkpoints.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "foundation/base/stateful.h"

namespace mortise {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

struct OptimizedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf; its .grad() is what step() consumes
  bool decay = true;
};

class AdamW : public Stateful {
 public:
  AdamW(std::vector<OptimizedParameter> parameters, const AdamWOptions& options,
        std::string state_name = "actor.optim");

  // One update with learning rate `lr` from the gradients multiplied by `grad_factor` (the clipping factor). A
  // parameter without gradient is left as it is. Gradients are left multiplied.
  void step(double lr, double grad_factor = 1.0);
  void zero_grad();  // zeroes in place: the memory is used again

  [[nodiscard]] int64_t num_updates() const { return num_updates_; }
  [[nodiscard]] const std::vector<OptimizedParameter>& parameters() const { return parameters_; }

  [[nodiscard]] std::string state_name() const override { return state_name_; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  void step_group(bool decay, double lr, double grad_factor);

  std::vector<OptimizedParameter> parameters_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  AdamWOptions options_;
  std::string state_name_;
  int64_t num_updates_ = 0;
};

// Gives every parameter without a gradient one of zeros: it received none in this update.
void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters);

// L2 norm of all gradients together, in double; parameters without gradient count as 0. Not finite if any element is
// not.
[[nodiscard]] double global_grad_norm(const std::vector<OptimizedParameter>& parameters);

// The factor that clips to max_norm: max_norm / (norm + 1e-6) where that is below 1, else 1 (as torch clips); a
// max_norm of 0 or less means no clipping.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace mortise
