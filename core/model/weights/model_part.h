// ModelPart: what one rank has of a model whose layers several ranks share (tensor_split.h).
//
// If the model has matrices in bfloat16 (rounded_matrices.h), the part has copies of its own masters, rounded in the same way,
// and the model's copies come and go with its matrices.
//
// With an adapter in training, A and B are whole on every rank. Of matrices that it changes, a rank's part is there twice:
// that of the base, and merged; and three times if the adapter's start left the base (PiSSA, OLoRA). A rank has a term of the
// gradient of A and of B. What the adapter trains as a whole is whole on every rank too, next to this rank's part of it.
//
// It has leaves and fused matrices of its own for what is split. The others (norms, and biases behind sums) are the model's. The
// matrices of the model itself have no memory, except between gather_all() and release_all(), when every rank has all of them:
// to sample, to compare and to save. Between gather_vocabulary() and release_vocabulary(), the model's embedding and head have
// memory: ranks that sample with their parts of the layers need them whole.
// Cost of gather_all: each rank receives the parts of the others. Thread rule: one thread at a time. gather_all and
// gathered are collectives of the group.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "model/layers/tensor_ranks.h"
#include "model/tensor/offload.h"
#include "model/weights/parameters.h"
#include "model/weights/tensor_split.h"

namespace mortise {

class ModelPart {
 public:
  // kTaken: this rank's numbers of `whole`; those of its bfloat16 copies where a master has no memory. kLater: matrices have no
  // memory before take(). `config` is that of the whole. kWhole: embedding and head stay whole, and the part shares the model's
  // tensors.
  enum class Numbers { kTaken, kLater };
  enum class Vocabulary { kSplit, kWhole };
  ModelPart(const ModelConfig& config, const ParameterStore& whole, std::shared_ptr<TensorRanks> ranks, Numbers numbers,
            Vocabulary vocabulary);

  // Takes this rank's numbers of the matrices of a part (embedding, layers, head), which have memory in the model, and frees
  // them there.
  void take(size_t part) const;
  // The same of what an adapter trains as a whole: from the model's numbers, which stay.
  void take_trained(size_t part) const;
  // Frees the memory of what is split in the model.
  void free_whole() const;
  // The base of an adapter: adds bfloat16 copies of its matrices, which passes then read, and to `whole`, the model's matrices,
  // those that come and go with them. The masters have no memory in the model.
  void add_rounded(DecoderWeights& whole);
  // Frees these copies. The next view of the base has to add them again.
  void forget_rounded();
  // Rounds the masters again. After every change of them. Nothing to do without bfloat16 matrices. `offload`: where the
  // masters may be; it releases each behind its use.
  void round(const Offload* offload = nullptr) const;
  // The masters of the part are not needed any more: its bfloat16 copies stay. Then the model gets its copies alone, too, when
  // they are gathered.
  void drop_masters();
  [[nodiscard]] bool has_masters() const { return has_masters_; }
  // Its numbers in the order of the model's parameters: bfloat16 copies where a master has no memory.
  [[nodiscard]] std::vector<NamedParameter> numbers() const;
  // The adapter of `whole` is trained, and `base` is this rank's part of its base. `parameters` are the model's: what is split
  // and trained itself stays whole, as A and B do, and a rank has a term of its gradient.
  void adapt(const DecoderLeaves& whole, std::shared_ptr<ModelPart> base, std::span<const NamedParameter> parameters);
  // Null: no adapter is trained.
  [[nodiscard]] const std::shared_ptr<ModelPart>& base() const { return base_; }
  // After every change of A, B and what is trained as a whole. Matrices without memory are left to merge_layer().
  void merge();
  // After a change of where A and B started: what the start leaves of the base. The same.
  void restore_start() const;
  // Computes merged_matrices() of a layer from its base, with the rows between them that have no adapter or are trained as a
  // whole. Changes no version: a pass may be under way.
  void merge_layer(int64_t layer) const;
  // The matrices of a layer that hold merged rows, and what a start left of the base, but for routers. They may be without
  // memory between passes.
  [[nodiscard]] std::vector<at::Tensor> merged_matrices(int64_t layer) const;

  [[nodiscard]] const std::shared_ptr<TensorRanks>& ranks() const { return ranks_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }  // this rank's layers
  // Its rows of embedding and head; null: they are whole.
  [[nodiscard]] const std::shared_ptr<const VocabularyShare>& vocabulary() const { return vocabulary_; }
  void set_rope_length(int64_t length) { config_.rope_length = length; }
  [[nodiscard]] const DecoderWeights& weights() const { return store_.weights; }
  [[nodiscard]] const DecoderLeaves& leaves() const { return store_.leaves; }
  // The same with the model's embedding and head, to sample.
  [[nodiscard]] DecoderWeights weights_to_sample() const;
  [[nodiscard]] DecoderLeaves leaves_to_sample() const;
  // This rank's numbers of the model's parameters, in their order.
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return store_.parameters; }
  [[nodiscard]] std::vector<NamedParameter>& parameters() { return store_.parameters; }
  [[nodiscard]] const TensorSplit& split(size_t parameter) const { return splits_[parameter]; }
  // The place of a parameter. Precondition: there is one of this name.
  [[nodiscard]] size_t find(const std::string& name) const { return places_.at(name); }
  [[nodiscard]] at::IntArrayRef whole_sizes(size_t parameter) const { return whole_[parameter].sizes(); }

  // What all ranks have of something with the shape of this parameter's part, such as its gradient.
  [[nodiscard]] at::Tensor gathered(size_t parameter, const at::Tensor& own) const;
  // All parts have memory until release_all().
  Result<> gather_all();
  void release_all();
  // The same of one part (0: embedding, layers from 1, head), while not all have memory. Without `keeps` this rank only helps the
  // others.
  Result<> gather_part(size_t part, bool keeps);
  void release_part(size_t part);
  Result<> gather_vocabulary();
  void release_vocabulary();
  [[nodiscard]] bool is_whole() const { return num_whole_ > 0; }

 private:
  void take_numbers(size_t parameter, const at::Tensor& whole) const;
  [[nodiscard]] at::Tensor parts_of(const at::Tensor& own) const;  // those of all ranks, one in each row
  void gather_matrices(size_t part, bool keeps) const;
  void gather_rows(size_t parameter, bool keeps) const;
  [[nodiscard]] bool is_vocabulary(size_t part) const { return part == 0 || part + 1 == by_part_.size(); }

  // Rows of a matrix that holds merged ones, and what they are merged from.
  struct Merged {
    int64_t layer = 0;
    at::Tensor merged_OI, base_OI;  // the same rows
    LoraMatrix factors;             // with the whole A and B; undefined: these rows have no adapter
    bool is_stack = false;          // it holds all experts (layers/expert_lora.h)
    // Is it a router, or the gate of a shared expert? These are whole on every rank, in the model's memory.
    [[nodiscard]] bool is_gate() const { return factors.defined() && !factors.split.is_split(); }
  };
  // What a start leaves of a matrix: of the whole one, and of this rank's part.
  struct Started {
    size_t part = 0;     // the layer's place among the parts
    LoraMatrix factors;  // A and B as they left the base
    at::Tensor base_OI, left_OI, whole_base_OI, whole_left_OI;
  };
  // A parameter that is trained next to an adapter.
  struct Trained {
    size_t parameter = 0;
    at::Tensor leaf;             // the model's
    at::Tensor* slot = nullptr;  // in the leaves of this part
    bool is_copy = false;        // what passes read there does not follow the leaf
  };
  void merge_rows(const Merged& rows, at::Tensor merged_OI) const;
  [[nodiscard]] at::Tensor trained_part(const Trained& trained) const;
  void share_with_base();
  void keep_trained(size_t parameter, const at::Tensor& leaf);
  void view_trained(const Trained& trained) const;
  [[nodiscard]] at::Tensor* slot_of(const at::Tensor& leaf);
  void leave_whole(size_t part) const;
  // The place of the parameter of which this is the leaf in this part.
  [[nodiscard]] size_t place_of_leaf(const at::Tensor& leaf) const;
  void adapt_matrices(const std::vector<LoraMatrix>& whole, const std::vector<at::Tensor>& base,
                      const std::vector<at::Tensor>& merged, int64_t layer, std::vector<LoraMatrix>& out);
  void adapt_experts(const ExpertLeaves& whole, size_t layer);
  void adapt_stack(const LoraMatrix& whole, const at::Tensor& base, const at::Tensor& merged, const TensorSplit& split,
                   int64_t layer, LoraMatrix& out);

  std::shared_ptr<TensorRanks> ranks_;
  std::shared_ptr<ModelPart> base_;
  std::vector<Merged> merged_;
  std::vector<Started> started_;
  std::vector<Trained> trained_;
  ModelConfig config_;
  ParameterStore store_;
  std::unordered_map<std::string, size_t> places_;  // the parameters' places, by name
  std::vector<at::Tensor> whole_;                   // the model's parameters, by place
  DecoderWeights whole_matrices_;                   // those of the model, if they have bfloat16 copies
  at::Tensor whole_embedding_VH_, whole_head_VH_;   // the model's
  at::Tensor embedding_leaf_, head_leaf_;           // the same as leaves
  std::shared_ptr<const VocabularyShare> vocabulary_;
  std::vector<TensorSplit> splits_;                  // by place
  std::vector<std::vector<size_t>> by_part_;         // places of what is split: embedding, layers, head
  std::vector<std::vector<c10::Storage>> storages_;  // by part: where these lie in the model
  int64_t num_whole_ = 0, num_vocabulary_ = 0;
  bool has_masters_ = true;
};

}  // namespace mortise
