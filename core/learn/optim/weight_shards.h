// WeightShards: the matrices of a model, each part of which (embedding, layer, head) is spread over the ranks (ZeRO 3,
// Rajbhandari et al., arXiv:1910.02054). Vectors stay whole on every rank.
//
// A pass gathers a part right before it uses it and frees it behind; the next layer travels meanwhile. The embedding and
// the head are gathered in pieces without a prefetch, because they are the largest parts. The gathered numbers are the
// very bits of the owners, so passes compute what they would with whole weights. With an adapter in training, the base is
// spread, and a layer's merged matrices are computed when it arrives.
//
// If ranks share the layers (tensor parallel), this rank's part of the model is spread over the ranks that have the same
// part, cut between matrices.
//
// Cost: a rank receives every part once in a forward pass and every layer that backward reaches once in a backward
// pass. Next to its own shard a rank then has two layers, or the embedding or the head. Thread rule: one thread at a
// time. open, close, finish_forward, run_backward, gather_all are collectives as weight_gate.h says.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "learn/optim/shards.h"
#include "model/layers/weight_gate.h"
#include "model/model.h"

namespace mortise {

// The parameters of a model in the units in which they are spread. An optimizer of these parameters uses the same.
struct WeightUnits {
  std::vector<std::vector<size_t>> parts;  // parameters of each part, without vectors; the last may be empty
  std::vector<size_t> whole;               // those that every rank keeps
};
[[nodiscard]] WeightUnits weight_units(const ModelConfig& config, std::span<const NamedParameter> parameters);

class WeightShards : public WeightGate {
 public:
  // Keeps this rank's numbers of the model's matrices and frees the rest. `model` has to stay where it is. `cut`: where
  // the optimizer of these weights cuts.
  static std::shared_ptr<WeightShards> spread(Model& model, Communicator& communicator, ShardCut cut);
  // For another model with the same parameters, whose memory was not touched: with the numbers of this one.
  std::shared_ptr<WeightShards> spread_copy(Model& model) const;
  // For the base of this model with an adapter (Model::base_view): the same numbers in the same memory.
  std::shared_ptr<WeightShards> spread_base(Model& base) const;

  void open(int64_t part, GatePass pass) override;
  void close(int64_t part, GatePass pass) override;
  void finish_forward() override;
  void run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) override;
  [[nodiscard]] bool is_whole() const override { return num_whole_ > 0; }
  [[nodiscard]] Result<> status() const override;

  // A collective. The parts that this rank keeps have memory until release_all(); with others it only helps the other ranks.
  Result<> gather_all(const KeepsPart& keeps = {});
  void release_all();
  // While all parts have memory: their numbers were changed, by all ranks alike.
  void take_changes();

  [[nodiscard]] int rank() const { return communicator_->rank(); }
  [[nodiscard]] const WeightUnits& units() const { return units_; }
  // The parameters that they count.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const {
    if (part_ == nullptr) return model_->stored_parameters();
    return (part_->base() != nullptr ? *part_->base() : *part_).parameters();
  }
  // This rank's numbers of a part [shards_of(part).of(rank).size()].
  [[nodiscard]] const at::Tensor& own(int64_t part) const { return parts_[static_cast<size_t>(part)].own; }
  [[nodiscard]] const Shards& shards_of(int64_t part) const { return parts_[static_cast<size_t>(part)].shards; }
  // this = (1 - weight) this + weight other, on this rank's numbers. Both have the same parameters.
  void move_towards(const WeightShards& other, double weight);

 private:
  struct Part {
    Shards shards;
    std::vector<at::Tensor> tensors;      // share the model's memory, but not its versions
    std::vector<c10::Storage> storages;   // where `tensors` lie
    std::vector<c10::Storage> base_only;  // those of them that merged matrices take the place of
    std::vector<c10::Storage> merged;     // where these matrices lie
    at::Tensor padded;                    // `own`, as long as that of the rank that has most
    at::Tensor own;
    bool has_memory = false;
  };
  // Users of each storage: a model with an adapter and the view of its base share some.
  using Holds = std::unordered_map<const c10::StorageImpl*, int64_t>;
  struct Prefetch {
    int64_t part = -1;
    at::Tensor numbers;
    std::unique_ptr<PendingCollective> pending;
  };

  WeightShards(Model& model, Communicator& communicator, ShardCut cut, std::shared_ptr<Holds> holds, bool merges);
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(parts_.size()) - 2; }
  [[nodiscard]] bool is_layer(int64_t part) const { return part >= 1 && part <= num_layers(); }
  // The head's part is the embedding's if they are one matrix.
  Part& unit_of(int64_t part);
  void gather(int64_t part, bool keeps);
  void receive(int64_t part, bool keeps);
  void gather_in_pieces(Part& unit, bool keeps);
  void prefetch(int64_t part);
  void pass_by(int64_t part, GatePass pass);
  void take_memory(int64_t part);
  void merge(int64_t part);
  void drop(int64_t part);
  void hold(std::span<const c10::Storage> storages);
  void release(std::span<const c10::Storage> storages);

  Model* model_;
  const ModelPart* part_;  // this rank's, if ranks share the layers; else null
  Communicator* communicator_;
  ShardCut cut_;
  std::shared_ptr<Holds> holds_;
  bool merges_ = false;
  bool is_tied_ = false;
  WeightUnits units_;
  std::vector<Part> parts_;     // embedding, layers, head
  int64_t first_backward_ = 1;  // the lowest part that backward reaches
  bool in_forward_ = false;
  int64_t next_ = 0;  // the part that comes next in the pass
  std::function<void(int64_t part)> on_layer_;
  std::optional<Prefetch> prefetched_;
  int64_t num_whole_ = 0;
  std::optional<Error> error_;
};

// What ranks have of a model whose layers they share (tensor parallel): all of it, this rank's part of it, or this rank's part of
// the layers next to the whole embedding and head.
enum class GatheredLayers { kWhole, kOwnPart, kOwnLayers };

// All weights of some models, or those that `keeps` names, in memory while it lives: of models that are spread, and of those
// whose layers are split. Other models, and null, are left as they are. A model that is both has its whole part of the
// layers meanwhile, whatever `keeps` names.
class WholeWeights {
 public:
  static Result<WholeWeights> gather(std::initializer_list<const Model*> models, const KeepsPart& keeps = {},
                                     GatheredLayers layers = GatheredLayers::kWhole);
  WholeWeights(WholeWeights&& other) noexcept
      : shards_(std::exchange(other.shards_, {})),
        parts_(std::exchange(other.parts_, {})),
        vocabularies_(std::exchange(other.vocabularies_, {})) {}
  WholeWeights& operator=(WholeWeights&&) = delete;
  ~WholeWeights() {
    for (WeightShards* shards : shards_) shards->release_all();
    for (ModelPart* part : parts_) part->release_all();
    for (ModelPart* part : vocabularies_) part->release_vocabulary();
  }

 private:
  WholeWeights() = default;
  std::vector<WeightShards*> shards_;
  std::vector<ModelPart*> parts_;
  std::vector<ModelPart*> vocabularies_;  // their embeddings and heads were gathered
};

// The shards of a model; null if it is whole on every rank.
[[nodiscard]] WeightShards* shards_of(const Model& model);

}  // namespace mortise
