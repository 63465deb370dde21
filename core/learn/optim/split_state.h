// The optimizer's side of ranks that share the layers (model/weights/model_part.h). Tensors that have the shape of a parameter
// in checkpoints: each rank saves and reads its own part of what is split. And the norm of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "foundation/base/stateful.h"
#include "learn/optim/optimizer.h"
#include "model/weights/model_part.h"

namespace mortise {

// `own`: this rank's numbers for the parameter at this place, which may lie in a file (model/tensor/offload.h). Ranks of other
// groups have the same ones, and one group writes them.
void put_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter, const at::Tensor& own,
              bool is_in_file);
// The same of numbers that no rank of another group has.
void put_owned_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter,
                    const at::Tensor& own, bool is_in_file);
// Ranks of another group have them.
void put_nothing(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter, DType dtype);
Result<> read_part(StateReader& reader, std::string_view key, const ModelPart& part, size_t parameter,
                   const at::Tensor& own);
// Is it there, in this type?
Result<> check_part(StateReader& reader, std::string_view key, const ModelPart& part, size_t parameter, DType dtype);

// A collective of the ranks that share the layers, with the same answer on each: global_grad_norm of the whole parameters.
// `norms`: of what this rank counts for of each (TensorSplit::counted).
Result<double> grad_norm_of_parts(const std::vector<OptimizedParameter>& parameters, std::span<const double> norms,
                                  const ModelPart& part);

}  // namespace mortise
