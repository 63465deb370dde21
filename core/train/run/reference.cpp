// See reference.h.
#include "train/run/reference.h"

#include <fmt/core.h>

#include "foundation/base/at_place.h"
#include "model/model.h"
#include "model/weights/weight_files.h"

namespace mortise {
namespace {

// "model.norm.weight [48]".
std::string text_of(const NamedParameter& parameter) {
  return fmt::format("{} {}", parameter.name, shape_text(parameter.tensor.sizes()));
}

// The first parameter of `own` that `other` does not have in this shape; empty if there is none.
std::string first_difference(const ParameterStore& own, const ParameterStore& other) {
  for (size_t i = 0; i < own.parameters.size(); ++i) {
    std::string text = text_of(own.parameters[i]);
    if (i >= other.parameters.size() || text_of(other.parameters[i]) != text) return text;
  }
  return "";
}

}  // namespace

Result<> check_reference(Env& env, const LoadedConfig& loaded, const ModelConfig& policy) {
  const std::optional<std::string>& folder = loaded.config.ref.path;
  if (!folder) return {};
  const std::string where = loaded.where("ref.path");
  const ModelConfig config = TRY(at_place(where, read_model_folder_config(env, *folder)));
  const ParameterStore own = allocate_parameters(policy, at::kFloat, /*requires_grad=*/false);
  const ParameterStore other = allocate_parameters(config, at::kFloat, /*requires_grad=*/false);
  std::string difference = first_difference(own, other);
  if (difference.empty()) difference = first_difference(other, own);
  if (difference.empty()) return {};
  return Error{ErrorKind::kData,
               "the reference has other weights than the policy: only one of the two has " + difference, where,
               "name a folder of the same model, such as an earlier checkpoint of it"};
}

}  // namespace mortise
