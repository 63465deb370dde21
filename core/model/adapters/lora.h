// A LoRA adapter in PEFT's folder form, applied to parameters: W += scale B A for every adapted matrix; tensors of
// modules_to_save and trained biases take the place of the base's.
//
// The sum is made in float64 and rounded once. Cost: 2 out in r flops a matrix. Memory: the adapter itself is kept, so
// that it can be saved apart again. Thread rule: plain values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "model/adapters/lora_config.h"
#include "model/weights/parameters.h"
#include "model/weights/weight_files.h"

namespace mortise {

struct LoraAdapter {
  LoraConfig config;
  StoredFile weights;  // adapter_model.safetensors, every tensor as bytes
};

// Reads the folder and merges it into `parameters` (of the base model). Errors name file and tensor: one that is not of
// this model, A without B, another rank than the configuration's, a variant that is not supported.
Result<LoraAdapter> apply_lora(Env& env, const Path& folder, std::span<NamedParameter> parameters);

// The two files of the folder, the same bytes as were read but for the base's path where one is given.
Result<> save_lora(Env& env, const Path& folder, const LoraAdapter& adapter, const std::string& base_model);

}  // namespace mortise
