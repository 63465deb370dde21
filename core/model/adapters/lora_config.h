// adapter_config.json of a LoRA adapter in PEFT's form (Hu et al. 2021; Kalajdzievski 2023 for rslora; Liu et al. 2024
// for DoRA): ranks, scales, base model. A field that would change the numbers and is not supported is an error that
// names it.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "foundation/base/adapter_choice.h"
#include "foundation/base/env.h"
#include "foundation/base/result.h"
#include "parse/pattern.h"

namespace mortise {

// A value of rank_pattern or alpha_pattern, for the modules that the pattern names.
template <class T>
struct ModuleValue {
  parse::Pattern pattern;
  T value;
};

struct LoraRank {
  int64_t rank = 0;
  double scale = 0.0;  // what B A is multiplied with: alpha / r, with rslora alpha / sqrt(r)
};

struct LoraConfig {
  std::string base_model;  // base_model_name_or_path as written
  int64_t rank = 0;
  double alpha = 0.0;
  bool use_rslora = false;
  double dropout = 0.0;                            // in updates, in [0, 1)
  std::string task_type;                           // CAUSAL_LM, SEQ_CLS, ...; empty: not said
  std::vector<ModuleValue<int64_t>> rank_pattern;  // the first that matches counts
  std::vector<ModuleValue<double>> alpha_pattern;
  bool use_dora = false;
  LoraInit init = LoraInit::kDefault;          // what left the base before training
  LoraBias bias = LoraBias::kNone;             // the biases that are trained
  std::vector<std::string> target_parameters;  // ends of names of parameters that are adapted (expert_names.h)
  std::vector<std::string> modules_to_save;    // ends of names of the modules that are trained as a whole
  bool ties_weights = false;                   // embedding and head stay one matrix if they are trained as a whole
  std::string text;                            // the file as read

  std::string where;  // its path; empty: of a fresh adapter

  // An error where a pattern takes too many steps for the module's name.
  [[nodiscard]] Result<LoraRank> rank_of(const std::string& module) const;
  [[nodiscard]] Result<std::vector<LoraRank>> ranks_of(std::span<const std::string> modules) const;
};

constexpr const char* kAdapterConfigFile = "adapter_config.json";
constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

// True if `folder` has an adapter and no model.
bool is_adapter_folder(Env& env, const Path& folder);
Result<LoraConfig> read_lora_config(Env& env, const Path& folder);
// The same from the file's text. `where`: the file for errors.
Result<LoraConfig> parse_lora_config(std::string text, const std::string& where);
// Relative to the adapter's folder where that leads to a model, else as written.
Result<Path> find_base_folder(Env& env, const Path& adapter_folder, const LoraConfig& config);

// `folder`, or where that is an adapter's, the folder of its base.
Result<Path> find_model_folder(Env& env, const Path& folder);

}  // namespace mortise
