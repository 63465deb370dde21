// The experts of a mixture as transformers 5 and PEFT hold them. All experts of a layer are one tensor, such as
// model.layers.0.mlp.experts.gate_up_proj, which PEFT's target_parameters name. Its adapter has one pair of A and
// B for all experts: A [E r, in] with the rows of an expert together, B [out, r E] with an expert in every E-th column.
// Thread rule: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/adapters/expert_names.h"
#include "model/weights/parameters.h"

namespace mortise {

struct ExpertStack {
  std::string name;  // "model.layers.0.mlp.experts.down_proj"
  int64_t num_experts = 0;
  int64_t in = 0, out = 0;         // one expert has these sides
  std::vector<size_t> parameters;  // what it is made of, expert by expert; gpt-oss: one tensor
};
// In the order of the parameters.
std::vector<ExpertStack> expert_stacks(std::span<const NamedParameter> parameters);
// Views [rows, in] of the matrices that lie under one another in expert `e`.
std::vector<at::Tensor> expert_matrices(const ExpertStack& stack, std::span<const NamedParameter> parameters,
                                        int64_t e);

}  // namespace mortise
