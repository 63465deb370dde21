// The routers and experts of a mixture by the names of transformers 5 and PEFT. Needs no libtorch: adapter_config.json is
// checked with it. Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mortise {

// The stack that a parameter, or a module of one expert (mlp.experts.0.up_proj), belongs to; empty: none.
std::string expert_stack_of(std::string_view name);
// A name with Mixtral's block_sparse_moe as mlp.
std::string transformers_name(std::string name);
// Without ".weight", by transformers' names.
bool is_router(std::string_view module);

// The module that holds a stack: model.layers.0.mlp.experts holds model.layers.0.mlp.experts.down_proj.
std::string expert_module(const std::string& stack);

// PEFT's rule for target_parameters and target_modules: an entry is a whole name, or its end after a dot.
bool names_parameter(std::span<const std::string> targets, std::string_view parameter);

}  // namespace mortise
