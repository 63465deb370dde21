// See weight_units.h.
#include "model/weights/weight_units.h"

#include <string_view>

#include "model/weights/names.h"

namespace mortise {

bool is_common(const NamedParameter& parameter) {
  const std::string_view name = parameter.name;
  return parameter.tensor.dim() == 1 || name == kScoreHead || is_bias(name) || is_gate(name);
}

size_t part_of_matrix(std::string_view name, size_t num_parts) {
  if (const auto layer = layer_of(name)) return static_cast<size_t>(*layer) + 1;
  return name == kEmbeddingName ? 0 : num_parts - 1;
}

WeightUnits weight_units(const ModelConfig& config, std::span<const NamedParameter> parameters) {
  WeightUnits units;
  units.parts.resize(static_cast<size_t>(config.num_layers) + 2);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_common(parameters[i])) {
      units.whole.push_back(i);
      continue;
    }
    units.parts[part_of_matrix(parameters[i].name, units.parts.size())].push_back(i);
  }
  return units;
}

}  // namespace mortise
