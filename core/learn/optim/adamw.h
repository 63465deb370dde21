// AdamW (Loshchilov and Hutter, 2019) over a list of parameters, by libtorch's fused kernel: one pass over parameter,
// gradient and both moments. Bias-corrected; eps is added to the root; decay only on parameters that ask for it.
//
// Sharded over ranks (ZeRO 1 and 2): each rank has the moments of its own range of the parameters (shards.h), steps that
// range from the gradient that own_gradient() has, and gets the others' parameters. Every bit is that of one process
// with the same gradient.
//
// Moments have the dtype of their parameter. State (moments and the update count) goes into checkpoints, in the same
// form whether sharded or not. Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foundation/base/stateful.h"
#include "learn/optim/shards.h"

namespace mortise {

class StateGather;

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

struct OptimizedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf; its .grad() is what step() consumes, unless the optimizer is sharded
  bool decay = true;
};

// How ranks share the state (ranks.zero_stage).
struct ZeroOptions {
  Communicator* communicator = nullptr;  // borrowed; null or one rank: nothing is shared
  int64_t stage = 0;                     // 1: moments; 2: moments, and gradients between micro-batches
};

class AdamW : public Stateful {
 public:
  // Precondition of sharding: all parameters are contiguous and of one dtype.
  AdamW(std::vector<OptimizedParameter> parameters, const AdamWOptions& options, std::string state_name = "actor.optim",
        const ZeroOptions& zero = {});

  // One update with learning rate `lr` from the gradients multiplied by `grad_factor` (the clipping factor). A
  // parameter without gradient is left as it is. Gradients are left multiplied. Sharded: a collective. All ranks then
  // have all parameters.
  Result<> step(double lr, double grad_factor = 1.0);
  void zero_grad();  // zeroes in place: the memory is used again
  // global_grad_norm of its parameters, with the same bits if the gradient is sharded. Sharded: a collective.
  [[nodiscard]] Result<double> grad_norm() const;

  [[nodiscard]] int64_t num_updates() const { return num_updates_; }
  [[nodiscard]] const std::vector<OptimizedParameter>& parameters() const { return parameters_; }

  // Null: not sharded.
  [[nodiscard]] const Shards* shards() const { return shards_ ? &*shards_ : nullptr; }
  // Are gradients reduced after every micro-batch?
  [[nodiscard]] bool shares_gradients() const { return shards_.has_value() && zero_.stage >= 2; }
  // Sharded: the gradient of this rank's range [shards()->of(rank).size()]. Null until set; step() takes it.
  [[nodiscard]] at::Tensor& own_gradient() { return own_gradient_; }
  // A copy of this rank's numbers of a moment (0: exp_avg, 1: exp_avg_sq). `range` lies in its own range.
  [[nodiscard]] at::Tensor own_moment(int moment, const FlatRange& range) const;
  // Sharded: save_state() reads the moments through it. Borrowed.
  void save_through(StateGather& gather) { gather_ = &gather; }

  [[nodiscard]] std::string state_name() const override { return state_name_; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  [[nodiscard]] FlatRange own_range() const { return shards_->of(zero_.communicator->rank()); }
  [[nodiscard]] at::Tensor part_of(const at::Tensor& tensor, const TensorPart& part) const;
  [[nodiscard]] at::Tensor gradient_of(size_t part) const;
  void step_group(bool decay, double lr, double grad_factor);

  std::vector<OptimizedParameter> parameters_;
  AdamWOptions options_;
  std::string state_name_;
  ZeroOptions zero_;
  std::optional<Shards> shards_;
  StateGather* gather_ = nullptr;
  // What this rank steps: whole parameters, or the parts of its range.
  std::vector<TensorPart> parts_;
  std::array<std::vector<at::Tensor>, 2> moments_;  // exp_avg and exp_avg_sq by part
  at::Tensor own_gradient_;
  int64_t num_updates_ = 0;
};

// Gives every parameter without a gradient one of zeros: it received none in this update.
void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters);

// L2 norm of all gradients together, in double; parameters without gradient count as 0. Not finite if any element is
// not. Each block's norm (shards.h) is squared and added in the flat order.
[[nodiscard]] double global_grad_norm(const std::vector<OptimizedParameter>& parameters);

// The factor that clips to max_norm: max_norm / (norm + 1e-6) where that is below 1, else 1 (as torch clips); a
// max_norm of 0 or less means no clipping.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace mortise
