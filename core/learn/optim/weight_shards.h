// WeightShards: the matrices of a model, each part of which (embedding, layer, head) is spread over the ranks (ZeRO 3,
// Rajbhandari et al., arXiv:1910.02054). Vectors and routers stay whole on every rank. spread_part.h says what travels
// between the ranks, and what each keeps of a part.
//
// A pass gathers a part right before it uses it and frees it behind; the next layer travels meanwhile. Passes read the embedding
// and the head window by window (matrix_windows.h), or gather them whole, without a prefetch. The gathered numbers are the very
// bits of the owners, so passes compute what they would with whole weights. With an adapter in training, the base is
// spread, and a layer's merged matrices are computed when it arrives.
//
// If ranks share the layers (tensor parallel), this rank's part of the model is spread over the ranks that have the same
// part, cut between matrices.
//
// Cost: a rank receives every part once in a forward pass and every layer that backward reaches once in a backward pass, and
// with windows the head once more. Next to its own shard a rank then has two layers, or a window of the embedding or the head,
// or all of one. Thread rule: one thread at a time. open, close, finish_forward, help_walks, run_backward, gather_all,
// gather_masters and move_towards are collectives as weight_gate.h says.
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
#include "learn/optim/matrix_windows.h"
#include "learn/optim/spread_part.h"
#include "model/layers/weight_gate.h"
#include "model/model.h"
#include "model/tensor/offload.h"

namespace mortise {

class WeightShards : public WeightGate {
 public:
  // Keeps this rank's numbers of the model's matrices and frees the rest; those that are unread (Model::open) it reads part by
  // part, with errors in status(). `model` has to stay where it is. `cut`: where
  // the optimizer of these weights cuts. `keeps_base`: passes read the base of an adapter, as plain layers do. `window_bytes`:
  // size of the windows in which passes read embedding and head. They gather a matrix whole if it is not larger. 0: always.
  static std::shared_ptr<WeightShards> spread(Model& model, Communicator& communicator, ShardCut cut,
                                              bool keeps_base = false, int64_t window_bytes = 0);
  // For another model with the same parameters, whose memory was not touched: with the numbers of this one. Of a model with
  // an adapter those are the base's.
  std::shared_ptr<WeightShards> spread_copy(Model& model) const;
  // For the base of this model with an adapter (Model::base_view): the same numbers in the same memory.
  std::shared_ptr<WeightShards> spread_base(Model& base) const;

  void open(int64_t part, GatePass pass) override;
  void close(int64_t part, GatePass pass) override;
  void finish_forward() override;  // the second call of a round does nothing
  void help_walks() override;
  void run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) override;
  void weights_changed() override;
  void drop_masters() override;
  [[nodiscard]] SpreadRows* embedding_rows() const override { return is_whole() ? nullptr : embedding_.get(); }
  [[nodiscard]] SpreadRows* head_rows() const override { return is_whole() ? nullptr : head_.get(); }
  [[nodiscard]] bool is_whole() const override { return num_whole_ > 0; }
  [[nodiscard]] Result<> status() const override;

  // A collective. All parts have memory until release_all(). Masters are not among it.
  Result<> gather_all();
  void release_all();
  // The same of the masters of bfloat16 matrices, where there are any.
  Result<> gather_masters();
  void release_masters();
  // A collective. One part, with its masters, has memory until close_whole(). Only while no other has. Without `keeps` this rank
  // only helps the others, and has nothing to close.
  Result<> open_whole(int64_t part, bool keeps = true);
  void close_whole(int64_t part);
  // Moves what this rank keeps into files: all of it, or only masters.
  Result<> offload_numbers(const std::shared_ptr<Offload>& files);
  Result<> offload_masters(const std::shared_ptr<Offload>& files);

  [[nodiscard]] int rank() const { return communicator_->rank(); }
  [[nodiscard]] const WeightUnits& units() const { return units_; }
  // The parameters that they count.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_to_spread(*model_); }
  // This rank's numbers of a part [shards_of(part).of(rank).size()], which are stepped and saved.
  [[nodiscard]] at::Tensor numbers(int64_t part) const { return parts_[static_cast<size_t>(part)].numbers(); }
  // Do they lie in a file?
  [[nodiscard]] bool lies_in_file(int64_t part) const { return files_ != nullptr && files_->holds(numbers(part)); }
  [[nodiscard]] const Shards& shards_of(int64_t part) const { return parts_[static_cast<size_t>(part)].shards; }
  // The windows of the embedding (part 0) or of the head; null for parts that are gathered whole.
  [[nodiscard]] MatrixWindows* windows_of(int64_t part) const {
    return part == 0 ? embedding_.get() : part == num_layers() + 1 ? head_.get() : nullptr;
  }
  // Passes will compare this model's head with that of `reference`, if both have windows. It has to live as long.
  void pair_heads(const WeightShards& reference) const;
  // this = (1 - weight) this + weight other, on this rank's numbers. Both have the same parameters; of a model with an
  // adapter, `other` counts merged. Errors are in its status().
  void move_towards(WeightShards& other, double weight);

 private:
  // Users of each storage: a model with an adapter and the view of its base share some.
  using Holds = std::unordered_map<const c10::StorageImpl*, int64_t>;
  struct Prefetch {
    int64_t part = -1;
    at::Tensor numbers;
    std::unique_ptr<PendingCollective> pending;
  };

  WeightShards(Model& model, Communicator& communicator, ShardCut cut, std::shared_ptr<Holds> holds, SpreadModel kind,
               bool keeps_base, int64_t window_bytes);
  void make_windows();
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(parts_.size()) - 2; }
  [[nodiscard]] bool is_layer(int64_t part) const { return part >= 1 && part <= num_layers(); }
  // The head's part is the embedding's if they are one matrix.
  SpreadPart& unit_of(int64_t part);
  void gather(int64_t part, bool keeps);
  void receive(int64_t part, bool keeps);
  void gather_in_pieces(const Shards& shards, const at::Tensor& own, std::span<const at::Tensor> tensors, bool keeps);
  void prefetch(int64_t part);
  void pass_by(int64_t part, GatePass pass);
  void compute_layer(int64_t part);
  void drop(int64_t part);
  void hold(std::span<const c10::Storage> storages);
  void release(std::span<const c10::Storage> storages);
  void leave_file(const at::Tensor& numbers) const;
  [[nodiscard]] at::Tensor merged_numbers(int64_t part);

  Model* model_;
  Communicator* communicator_;
  ShardCut cut_;
  std::shared_ptr<Holds> holds_;
  SpreadModel kind_;
  bool is_tied_ = false;
  WeightUnits units_;
  std::vector<SpreadPart> parts_;  // embedding, layers, head
  int64_t window_bytes_;
  std::shared_ptr<MatrixWindows> embedding_, head_;  // null: gathered whole. One object if they are one matrix
  std::shared_ptr<Offload> files_;                   // null: this rank's numbers are in memory
  int64_t first_backward_ = 1;                       // the lowest part that backward reaches
  bool in_forward_ = false, has_finished_ = false;   // the forward pass of the round
  int64_t next_ = 0;                                 // the part that comes next in the pass
  std::function<void(int64_t part)> on_layer_;
  std::optional<Prefetch> prefetched_;
  int64_t num_whole_ = 0, num_with_masters_ = 0;
  std::optional<Error> error_;
};

// What ranks have of a model whose layers they share (tensor parallel): all of it, this rank's part of it, or this rank's part of
// the layers next to the whole embedding and head.
enum class GatheredLayers { kWhole, kOwnPart, kOwnLayers };
// Are masters of bfloat16 matrices there too? Passes do not read them.
enum class GatheredMasters { kNo, kYes };

// All weights of some models in memory while it lives: of models that are spread, and of those whose layers are split. Other
// models, and null, are left as they are.
class WholeWeights {
 public:
  static Result<WholeWeights> gather(std::initializer_list<const Model*> models,
                                     GatheredLayers layers = GatheredLayers::kWhole,
                                     GatheredMasters masters = GatheredMasters::kYes);
  WholeWeights(WholeWeights&& other) noexcept
      : shards_(std::exchange(other.shards_, {})),
        with_masters_(std::exchange(other.with_masters_, {})),
        parts_(std::exchange(other.parts_, {})),
        vocabularies_(std::exchange(other.vocabularies_, {})) {}
  WholeWeights& operator=(WholeWeights&&) = delete;
  ~WholeWeights() {
    for (WeightShards* shards : with_masters_) shards->release_masters();
    for (WeightShards* shards : shards_) shards->release_all();
    for (ModelPart* part : parts_) part->release_all();
    for (ModelPart* part : vocabularies_) part->release_vocabulary();
  }

 private:
  WholeWeights() = default;
  std::vector<WeightShards*> shards_, with_masters_;
  std::vector<ModelPart*> parts_;
  std::vector<ModelPart*> vocabularies_;  // their embeddings and heads were gathered
};

// Gives the parts of spread weights memory one after another, to read all numbers in the order of the parameters. Null, or
// shards whose parts all have memory: they are left as they are. Each rank has to reach the same parameters.
class PartWalk {
 public:
  explicit PartWalk(WeightShards* shards) : shards_(shards != nullptr && shards->is_whole() ? nullptr : shards) {}
  PartWalk(const PartWalk&) = delete;
  PartWalk& operator=(const PartWalk&) = delete;
  ~PartWalk() { leave(); }
  // The part of this parameter has memory now.
  Result<> reach(const NamedParameter& parameter);

 private:
  void leave();

  WeightShards* shards_;
  int64_t part_ = -1;  // that is open; -1: none
};

// The shards of a model; null if it is whole on every rank.
[[nodiscard]] WeightShards* shards_of(const Model& model);

}  // namespace mortise
