// The routers and experts of a mixture as transformers 5 and PEFT name them. All experts of a layer are one tensor,
// such as model.layers.0.mlp.experts.gate_up_proj, which PEFT's target_parameters name. Its adapter has one pair of A and
// B for all experts: A [E r, in] with the rows of an expert together, B [out, r E] with an expert in every E-th column.
// Thread rule: plain values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// The stack that a parameter, or a module of one expert (mlp.experts.0.up_proj), belongs to; empty: none.
std::string expert_stack_of(std::string_view name);
// A name with Mixtral's block_sparse_moe as mlp.
std::string transformers_name(std::string name);
// Without ".weight", by transformers' names.
bool is_router(std::string_view module);

// "....mlp.experts" of a stack's name.
std::string expert_module(const std::string& stack);

// PEFT's rule for target_parameters: a parameter's whole name, or its end after a dot.
bool names_parameter(std::span<const std::string> targets, std::string_view parameter);

}  // namespace mortise
