// The folder of an adapter in training: reading and writing. See trained_lora.h.
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "model/adapters/expert_targets.h"
#include "model/adapters/lora.h"
#include "model/adapters/trained_lora.h"
#include "model/layers/expert_lora.h"
#include "model/weights/names.h"
#include "model/weights/saver.h"

namespace mortise {

// The adapters of single experts, as one of the stack: gate and up have rows and columns of their own in B.
Result<> TrainedLora::load_stack(const LoraTensors& tensors, const Matrix& matrix) const {
  const std::string where = tensors.file.path().string();
  const auto stack = std::ranges::find(stacks_, plan_.modules[matrix.module], &ExpertStack::name);
  const std::vector<std::string> modules = single_expert_modules(*stack, base_.parameters);
  const int64_t each = static_cast<int64_t>(modules.size()) / std::max<int64_t>(1, stack->num_experts);
  const LoraMatrix& f = matrix.factors;
  const at::Tensor a_ErI = factors_a(f.a_RI.detach(), stack->num_experts);
  const at::Tensor b_EOr = factors_b(f.b_OR.detach(), stack->num_experts);
  b_EOr.zero_();
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto found = tensors.pairs.find(modules[i]);
    if (found == tensors.pairs.end()) {
      return Error{ErrorKind::kData, "the adapter has no lora_A and lora_B of " + quote(modules[i]), where,
                   "use the adapter of the same modules"};
    }
    const auto expert = static_cast<int64_t>(i) / each, part = static_cast<int64_t>(i) % each;
    const int64_t rank = a_ErI.size(1) / each, rows = stack->out / each;
    const at::Tensor a = at::zeros({rank, stack->in}, f.a_RI.options()), b = at::zeros({rows, rank}, f.a_RI.options());
    TRY(copy_stored(*found->second.a, where, a));
    TRY(copy_stored(*found->second.b, where, b));
    a_ErI.select(0, expert).narrow(0, part * rank, rank).copy_(a);
    b_EOr.select(0, expert).narrow(0, part * rows, rows).narrow(1, part * rank, rank).copy_(b);
  }
  return {};
}

Result<> TrainedLora::load(Env& env, const Path& folder) {
  const at::NoGradGuard no_grad;
  const LoraTensors tensors = TRY(read_lora_tensors(env, folder));
  const std::string where = tensors.file.path().string();
  if (changes_base(plan_.config.init)) TRY(take_start());
  for (const Matrix& matrix : matrices_) {
    const std::string& module = plan_.modules[matrix.module];
    const auto found = tensors.pairs.find(module);
    if (found == tensors.pairs.end() && is_expert_stack(module)) {
      TRY(load_stack(tensors, matrix));
      continue;
    }
    if (found == tensors.pairs.end()) {
      return Error{ErrorKind::kData, "the adapter has no lora_A and lora_B of " + quote(module), where,
                   "use the adapter of the same modules"};
    }
    const LoraMatrix& f = matrix.factors;
    TRY(copy_stored(*found->second.a, where, f.a_RI.detach()));
    TRY(copy_stored(*found->second.b, where, f.b_OR.detach()));
    if (f.magnitude_O.defined()) TRY(copy_stored(*found->second.magnitude, where, f.magnitude_O.detach()));
  }
  for (const TensorView* view : tensors.others) {
    const NamedParameter* parameter = find(view->name);
    if (parameter == nullptr) parameter = find(std::string(kLoraPrefix) + whole_parameter_name(view->name));
    if (parameter == nullptr) continue;
    TRY(copy_stored(*view, where, parameter->tensor.detach()));
    loaded_.insert(whole_parameter(parameter->name));
  }
  merge();
  return {};
}

namespace {

// The configuration of an adapter of twice the rank, with the scales of the one before.
void double_ranks(Json& json, bool use_rslora) {
  const double factor = use_rslora ? std::sqrt(2.0) : 2.0;
  json["r"] = json["r"].get<int64_t>() * 2;
  json["lora_alpha"] = json["lora_alpha"].get<double>() * factor;
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    if (!json.contains(key) || !json[key].is_object()) continue;
    for (auto& [pattern, value] : json[key].items()) {
      if (value.is_number_integer() && std::string_view(key) == "rank_pattern")
        value = value.template get<int64_t>() * 2;
      else
        value = value.template get<double>() * factor;
    }
  }
  json["init_lora_weights"] = true;
}

}  // namespace

Result<std::vector<FolderFile>> TrainedLora::plan_save(const std::string& base_model, at::ScalarType stored) const {
  const at::NoGradGuard no_grad;
  Json json = TRY(parse_json(plan_.config.text, kAdapterConfigFile));
  if (!base_model.empty()) json["base_model_name_or_path"] = base_model;
  std::vector<NamedTensor> tensors;
  for (const NamedParameter& parameter : parameters_) tensors.push_back({parameter.name, parameter.tensor});
  if (!start_.empty()) {
    double_ranks(json, plan_.config.use_rslora);
    const size_t each = plan_.config.use_dora ? 3 : 2;
    for (size_t m = 0; m < matrices_.size(); ++m) {
      at::Tensor& a = tensors[each * m].tensor;
      at::Tensor& b = tensors[each * m + 1].tensor;
      a = at::cat({a.detach(), start_[2 * m].tensor}, 0);
      b = at::cat({b.detach(), -start_[2 * m + 1].tensor}, 1);
    }
  }
  // PEFT wants the one matrix of a tied model under both names.
  const std::string prefix(kLoraPrefix);
  const NamedParameter* const embedding = find(prefix + kEmbeddingName);
  if (embedding != nullptr && plan_.config.ties_weights) tensors.push_back({prefix + kHeadName, embedding->tensor});
  std::vector<FolderFile> files = {plan_tensor_file(kAdapterWeightsFile, std::move(tensors), stored)};
  files.push_back(text_folder_file(kAdapterConfigFile, dump_json(json, 2) + "\n"));
  return files;
}

}  // namespace mortise
