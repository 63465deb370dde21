// The parameters of a model in the units in which ranks share them: what every rank has whole, and the matrices of each part.
// Thread rule: pure functions of values.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "model/weights/model_config.h"
#include "model/weights/parameters.h"

namespace mortise {

// Does every rank keep all of it: a vector, a bias of experts, a router, a classifier's head?
[[nodiscard]] bool is_common(const NamedParameter& parameter);

// The part of a matrix among `num_parts`: the embedding, the layers, the head.
[[nodiscard]] size_t part_of_matrix(std::string_view name, size_t num_parts);

// An optimizer of these parameters uses the same units.
struct WeightUnits {
  std::vector<std::vector<size_t>> parts;  // matrices of embedding, layers and head; the last may be empty
  std::vector<size_t> whole;               // what is_common()
};
[[nodiscard]] WeightUnits weight_units(const ModelConfig& config, std::span<const NamedParameter> parameters);

}  // namespace mortise
