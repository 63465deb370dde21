// Tensors that have the shape of a parameter in checkpoints, if ranks share the layers (model/weights/model_part.h). Each
// rank saves and reads its own part of what is split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "foundation/base/stateful.h"
#include "model/weights/model_part.h"

namespace mortise {

// `own`: this rank's numbers for the parameter at this place. Ranks of other groups have the same ones, and one group writes
// them.
void put_part(StateWriter& writer, std::string_view key, const ModelPart& part, size_t parameter,
              const at::Tensor& own);
Result<> read_part(StateReader& reader, std::string_view key, const ModelPart& part, size_t parameter,
                   const at::Tensor& own);

}  // namespace mortise
