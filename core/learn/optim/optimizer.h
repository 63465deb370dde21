// Optimizer: steps a list of parameters by an update rule (rules.h), and keeps the rule's state.
//
// Sharded over ranks (ZeRO): each rank has the state of its own range of each unit (shards.h), steps these ranges from
// the gradients that the units have, and gets the others' parameters. A unit is a bucket of parameters, whose gradients
// are complete at about the same time (buckets.h). If the parameters themselves are spread (weight_shards.h), each of
// their parts is a unit, and a rank steps its own numbers only. Every bit is that of one process with the same gradient.
// A rule that needs whole parameters gets ranges that are cut between parameters.
//
// If ranks share the layers of the model (tensor parallel), the parameters are this rank's part of them. A rule that works
// element by element steps this part; others step whole parameters (group_step.h). The ranks with the same part may share its
// state: each has that of some parameters. State is saved in the shapes of whole parameters.
//
// State (the rule's tensors and the update count) goes into checkpoints. On several ranks each has its part (RankedTensor).
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/stateful.h"
#include "learn/optim/buckets.h"
#include "learn/optim/shards.h"
#include "learn/optim/step_norm.h"
#include "learn/optim/update_rule.h"
#include "model/tensor/offload.h"
#include "model/weights/rounded_matrices.h"

namespace mortise {

struct DeviceKernels;
class GroupStep;
class RoundedStep;
class ModelPart;
class RestingState;
class WeightShards;

// How ranks share the state (ranks.zero_stage).
struct ZeroOptions {
  // Borrowed. The ranks with the same parameters: all, or with `tensor` and a stage one out of each group that shares the
  // layers. Null or one rank: nothing is shared.
  Communicator* communicator = nullptr;
  int64_t stage = 0;                         // 1: the state; 2: the state and gradients; 3: as 2
  WeightShards* weights = nullptr;           // borrowed; the parameters, if they are spread
  const ModelPart* tensor = nullptr;         // borrowed; what has the parameters, if ranks share the layers
  bool saves = true;                         // false: another rank with the same state and `communicator` rank saves it
  std::optional<int64_t> bucket_bytes = {};  // bytes of a unit that is not spread; null: unit_size()
};

// Parameters that are cut into ranges of ranks together.
struct ShardUnit {
  std::vector<size_t> parameters;  // in the order of `shards`
  Shards shards;
  int64_t part = -1;                // which part of spread weights; -1: every rank has these parameters
  std::vector<size_t> places = {};  // their places among all parameters of that part, frozen ones too
  at::Tensor own_gradient =
      {};  // gradient of this rank's range [shards.of(rank).size()]; null until set, step() takes it
};

// Optimizer::step_clipped.
struct ClippedStep {
  StepNorm grad_norm;
  bool writes_copies = false;  // else the copies are still those of the old weights
};

// kLater: there is no state until Optimizer::offload() puts it into files. kHost: it is in the host's memory but for the
// time from a step to the next rest().
enum class StateMemory { kNow, kLater, kHost };

class Optimizer : public Stateful {
 public:
  // Precondition: parameters are contiguous. Of sharding: they have one dtype.
  Optimizer(std::vector<OptimizedParameter> parameters, std::unique_ptr<const UpdateRule> rule, double weight_decay,
            std::string state_name = "actor.optim", const ZeroOptions& zero = {},
            StateMemory memory = StateMemory::kNow);
  Optimizer(Optimizer&& other) noexcept;
  ~Optimizer() override;

  // For kLater: the state lies in `files`. A step has the pages of one parameter at a time, and of its weights too if they
  // are in `files`. The numbers are the same.
  Result<> offload(std::shared_ptr<Offload> files);

  // For kHost: the state leaves the device, whose memory for it is then free, until the next step. Waits for the device.
  // Views of the state that were saved meanwhile stay as they are until the rest() behind the next step.
  Result<> rest();
  [[nodiscard]] bool rests() const { return resting_ != nullptr; }

  // One update with learning rate `lr` from the gradients multiplied by `grad_factor` (the clipping factor). A
  // parameter without gradient is left as it is. Gradients may be changed. Sharded: a collective. All ranks then have
  // all parameters.
  Result<> step(double lr, double grad_factor = 1.0);
  // One update from the gradients clipped to `max_norm` (clip_factor). It changes nothing, and does not count, if their
  // norm is not finite. Where the kernels of core/cuda take the step (kernel_step.h), neither waits for the other: the
  // device skips by itself, and the host reads the norm at the next step, or when it is asked for. The `copies` of
  // stepped masters are written too.
  Result<ClippedStep> step_clipped(double lr, double max_norm, const MasterCopies& copies = {});
  void zero_grad();  // zeroes in place: the memory is used again
  // global_grad_norm of its parameters, with the same bits if the gradient is sharded. Of whole parameters if ranks share
  // the layers: on each rank the same. Either is a collective.
  [[nodiscard]] Result<double> grad_norm() const;

  // Those that were not skipped. Waits for the norm of the last step.
  [[nodiscard]] int64_t num_updates() const {
    count_open_step();
    return num_updates_;
  }
  [[nodiscard]] const std::vector<OptimizedParameter>& parameters() const { return parameters_; }

  [[nodiscard]] bool is_sharded() const { return !units_.empty(); }
  // Do they leave in every micro-batch?
  [[nodiscard]] bool shares_gradients() const { return is_sharded() && zero_.stage >= 2; }
  // Empty if it is not sharded. Those that are not spread come in the order in which backward completes them.
  [[nodiscard]] std::vector<ShardUnit>& units() { return units_; }
  // The gradients in them by parameter, if a rank owns whole parameters: views.
  [[nodiscard]] std::vector<std::pair<size_t, at::Tensor>> own_gradients() const;
  // For a model without master weights, with and without shards.
  void step_rounded(std::shared_ptr<const RoundedStep> rounded) { rounded_ = std::move(rounded); }

  [[nodiscard]] std::string state_name() const override { return state_name_; }
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  // What this rank steps: a parameter, or a part of one.
  struct OwnPart {
    size_t parameter = 0;
    int64_t begin = 0, size = 0;  // numbers of the parameter
    size_t unit = 0;
    int64_t at = 0;          // its place in the unit's own_gradient
    int64_t at_weights = 0;  // its place among this rank's numbers of the unit's part
  };
  void make_units();
  void make_bucket_units();
  Result<> make_state();
  void add_spread_unit(std::span<const size_t> indices, int64_t part);
  // Where ranges of ranks may be cut.
  [[nodiscard]] ShardCut cut() const {
    return rule_->needs_whole_parameters() || zero_.tensor != nullptr ? ShardCut::kTensors : ShardCut::kBlocks;
  }
  [[nodiscard]] std::vector<int64_t> sizes_of(std::span<const size_t> parameters) const;
  // `weights`: of these parts. Those that have a gradient come to `stepped` too.
  [[nodiscard]] std::vector<StepPart> parts_to_step(std::span<const size_t> parts, std::span<const at::Tensor> weights,
                                                    double lr, std::vector<size_t>& stepped) const;
  Result<> step_parts(std::span<const size_t> parts, std::span<const at::Tensor> weights, double lr,
                      double grad_factor);
  void count_open_step() const;
  Result<> share_weights();
  Result<ClippedStep> step_by_kernels(const DeviceKernels& kernels, double lr, double max_norm,
                                      const MasterCopies& copies);
  Result<> step_layers(double lr, double grad_factor);
  Result<> step_unit(size_t unit, double lr, double grad_factor);
  [[nodiscard]] std::vector<at::Tensor> weights_of(std::span<const size_t> parts) const;
  void run_rule(std::span<StepPart> parts, double grad_factor) const;
  [[nodiscard]] std::vector<OwnPart> parts_of(int rank) const;
  [[nodiscard]] bool cuts_parameters() const { return is_sharded() && cut() == ShardCut::kBlocks; }
  [[nodiscard]] at::Tensor weights_of(const OwnPart& part) const;
  [[nodiscard]] at::Tensor gradient_of(const OwnPart& part) const;
  [[nodiscard]] FlatRange state_range_of(int64_t begin, int64_t size, const StateTensor& state) const;
  // What this rank steps of a parameter that is not cut; nothing if another rank steps it.
  [[nodiscard]] std::optional<size_t> part_of(size_t parameter) const;
  void put_state(StateWriter& writer, size_t parameter, size_t state) const;
  void put_split_state(StateWriter& writer, size_t parameter, size_t state) const;
  Result<> read_split_state(StateReader& reader, size_t parameter, size_t state);
  void put_group_state(StateWriter& writer, size_t parameter, size_t state) const;
  Result<> read_group_state(StateReader& reader, size_t parameter, size_t state);
  [[nodiscard]] Result<std::vector<double>> parameter_norms() const;

  std::vector<OptimizedParameter> parameters_;
  std::unique_ptr<const UpdateRule> rule_;
  double weight_decay_;
  std::string state_name_;
  ZeroOptions zero_;
  std::vector<ShardUnit> units_;
  std::unique_ptr<GroupStep> group_;              // null: the rule steps what this rank has
  std::shared_ptr<const RoundedStep> rounded_;    // null: the parameters have memory
  std::shared_ptr<Offload> files_;                // null: the state is in memory
  std::vector<std::vector<StateTensor>> layout_;  // by parameter
  std::vector<OwnPart> parts_;
  std::vector<std::vector<at::Tensor>> state_;  // by part
  std::unique_ptr<RestingState> resting_;       // null: state_ stays where it is
  mutable std::optional<StepNorm> open_;        // norm of a step that is not counted yet
  mutable int64_t num_updates_ = 0;
};

// Bytes of the state of these parameters, which may be without memory.
[[nodiscard]] int64_t state_bytes(const UpdateRule& rule, const std::vector<OptimizedParameter>& parameters);

// Gives every parameter without a gradient one of zeros: it received none in this update.
void fill_absent_gradients(const std::vector<OptimizedParameter>& parameters);

// L2 norm of all gradients together, in double; parameters without gradient count as 0. Not finite if any element is
// not. Each block's norm (shards.h) is squared and added in the flat order.
[[nodiscard]] double global_grad_norm(const std::vector<OptimizedParameter>& parameters);

// The factor that clips to max_norm: max_norm / (norm + 1e-6) where that is below 1, else 1 (as torch clips); a
// max_norm of 0 or less means no clipping.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace mortise
