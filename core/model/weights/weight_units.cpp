// See weight_units.h.
#include "model/weights/weight_units.h"

#include <string_view>

#include "model/weights/names.h"

namespace mortise {

bool is_common(const NamedParameter& parameter) {
  const std::string_view name = parameter.name;
  return parameter.tensor.dim() == 1 || name == kScoreHead || is_bias(name) || is_gate(name);
}

WeightUnits weight_units(const ModelConfig& config, std::span<const NamedParameter> parameters) {
  WeightUnits units;
  units.parts.resize(static_cast<size_t>(config.num_layers) + 2);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_common(parameters[i])) {
      units.whole.push_back(i);
      continue;
    }
    const std::string_view name = parameters[i].name;
    size_t part = name == kEmbeddingName ? 0 : units.parts.size() - 1;
    if (const auto layer = layer_of(name)) part = static_cast<size_t>(*layer) + 1;
    units.parts[part].push_back(i);
  }
  return units;
}

}  // namespace mortise
