// A LoRA adapter in training (Hu et al. 2021): the base is frozen, and A and B of the chosen matrices are the
// parameters, with DoRA (Liu et al. 2024) also a magnitude for each of their rows. It begins like PEFT's (lora.h,
// LoraInit). Parameters of modules_to_save and biases may be trained as a whole next to it. Dropout is part of a pass
// (layers/lora_dropout.h): only updates have it.
//
// The model computes with merged matrices W + scale B A. merge() computes them again after every update, so training,
// sampling and a merged save see the same numbers. The base's own numbers of all that is trained are kept next to the
// merged ones, and the reference model is a view of them. If the start of A and B left the base (PiSSA, OLoRA), a third
// copy is what A and B are added to; such an adapter is saved as one of twice the rank that fits the whole base, as
// PEFT's save_pretrained does for path_initial_model_for_weight_conversion.
// Cost of merge(): 2 in out rank flops per matrix. Thread rule: merge() writes; else plain values that share tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/rng.h"
#include "model/adapters/lora.h"
#include "model/adapters/lora_plan.h"
#include "model/layers/decoder.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

class TrainedLora {
 public:
  // The parameters of `store` are frozen from now on, but for those that are trained as a whole, and its adapted leaves
  // hold the merged matrices. A and B are zero; see initialize() and load(). With kShared the memory of `store` belongs to
  // another model too and stays the base, and the merged matrices get memory of their own.
  enum class BaseMemory { kOwn, kShared };
  TrainedLora(LoraPlan plan, ParameterStore& store, BaseMemory memory);

  Result<> initialize(uint64_t seed, RandomPurpose purpose);
  // What initialize() takes from the base. Matrices without memory are left to another call.
  Result<> start_from_base();
  Result<> load(Env& env, const Path& folder);
  // Has load() read this parameter of the model, which is trained as a whole?
  [[nodiscard]] bool has_loaded(const std::string& parameter) const { return loaded_.contains(parameter); }
  // After every change of the parameters. Matrices without memory are left to merge_layer().
  void merge();
  // Computes merged_matrices() of a layer from its base, with the rows between them that have no adapter. Changes no
  // version: a pass may be under way.
  void merge_layer(int64_t layer);
  // The fused matrices of a layer that hold merged rows, and what a start left of the base. They may be without memory
  // between passes. Not those that always have it: adapted routers, and matrices that hold rows trained as a whole.
  [[nodiscard]] std::vector<at::Tensor> merged_matrices(int64_t layer) const;
  // Do the fast layers read the base of adapted matrices (DoRA)? Plain layers always do.
  [[nodiscard]] bool passes_read_base() const { return plan_.config.use_dora; }
  // Is this parameter (of PEFT's name) part of the adapter of a router, or of the gate of a shared expert?
  [[nodiscard]] bool is_of_gate(const std::string& name) const { return of_gates_.contains(name); }
  // Experts or routers are adapted, which servers do not take.
  [[nodiscard]] bool adapts_parameters() const { return !plan_.config.target_parameters.empty(); }
  // Only A and B of the whole base are trained: no DoRA, PiSSA or OLoRA, nothing as a whole.
  [[nodiscard]] bool is_plain() const { return !plan_.config.use_dora && start_.empty() && plan_.whole.empty(); }

  // The model's parameters that are trained as a whole.
  [[nodiscard]] const std::vector<std::string>& whole_parameters() const { return plan_.whole; }
  // The one of them that has this name of PEFT's; empty: it is A, B or a magnitude.
  [[nodiscard]] std::string whole_parameter(const std::string& name) const;

  // By PEFT's names: A, B and the magnitude of each matrix, then what is trained as a whole.
  [[nodiscard]] std::vector<NamedParameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<NamedParameter>& parameters() const { return parameters_; }
  // A and B as they left the base, for checkpoints. After a change: restore_start(), which leaves matrices without memory
  // to merge_layer().
  [[nodiscard]] const std::vector<NamedParameter>& start() const { return start_; }
  void restore_start();
  // The probability that an update drops a feature of the adapter's input.
  [[nodiscard]] double dropout() const { return plan_.config.dropout; }
  // The model without the adapter, in the same memory.
  [[nodiscard]] const ParameterStore& base() const { return base_; }
  // adapter_config.json, adapter_model.safetensors. `base_model`: the base's folder; empty: as in the configuration.
  [[nodiscard]] Result<std::vector<FolderFile>> plan_save(const std::string& base_model, at::ScalarType stored) const;

 private:
  // A stack of experts has tensors of all experts: [E, out, in], or [E, in, out] as in gpt-oss.
  struct Matrix {
    size_t module = 0;
    LoraMatrix factors;
    at::Tensor merged_OI;
    at::Tensor whole_base_OI;  // factors.base_OI may be only what the start left of it
  };
  // Rows of a merged matrix, and where they come from.
  struct Rows {
    int64_t layer = 0;
    at::Tensor base_OI, merged_OI;  // the same rows
    LoraMatrix factors;             // undefined: not adapted
    bool is_gate = false;           // a router, or the gate of a shared expert
    bool has_trained = false;       // the fused matrix also holds rows that are trained as a whole
  };
  void keep_base(ParameterStore& store, BaseMemory memory);
  void add_matrices(const std::vector<at::Tensor>& base_leaves, const std::vector<at::Tensor>& merged_leaves,
                    std::vector<LoraMatrix>& lora, int64_t layer);
  void add_gate(const at::Tensor& base_leaf, const at::Tensor& merged_leaf, std::vector<LoraMatrix>& lora,
                int64_t layer);
  LoraMatrix add_matrix(size_t module, const at::Tensor& base_OI);
  void add_factors(LoraMatrix& matrix, int64_t columns, int64_t in, int64_t out);
  // The stack that the leaves make up, if it is adapted.
  void add_stack(const std::vector<at::Tensor>& base_leaves, const at::Tensor& base, const at::Tensor& merged,
                 LoraMatrix& lora, int64_t layer);
  void merge_rows(const LoraMatrix& factors, at::Tensor merged) const;
  Result<> load_stack(const LoraTensors& tensors, const Matrix& matrix) const;
  void add_whole(const ParameterStore& store);
  Result<> take_start();
  void start_magnitudes();
  [[nodiscard]] const NamedParameter* find(const std::string& name) const;

  LoraPlan plan_;
  std::vector<NamedParameter> parameters_;
  std::vector<NamedParameter> start_;
  std::unordered_map<std::string, std::string> whole_names_;  // PEFT's name -> the model's
  std::unordered_set<std::string> of_gates_;                  // by PEFT's names
  std::unordered_set<std::string> loaded_;                    // the model's parameters that load() has read
  std::vector<Matrix> matrices_;
  std::vector<Rows> rows_;  // for every fused matrix with an adapter
  ParameterStore base_;
  std::unordered_map<const void*, size_t> index_of_;  // base leaf -> parameter
  std::vector<ExpertStack> stacks_;                   // made up of the base's parameters
};

}  // namespace mortise
