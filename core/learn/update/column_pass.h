// Passes over all rows of a table without gradient that give numbers per response token: log-probs, values. The ranks
// share the micro-batches, and every rank gets all numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "learn/update/learner_options.h"
#include "learn/update/packed_forward.h"

namespace mortise {

// The numbers of a micro-batch from its forward pass; `rows` are its rows in the table.
using ColumnCompute = std::function<std::vector<at::Tensor>(const PackedForward&, std::span<const int64_t> rows)>;

// Calls `compute` with the forward pass of each micro-batch of this rank, and its rows. It gives one tensor for each of `out`, [R] of
// the targets that this rank has. They then have [N], by the table's tokens. `options` say how passes run and who shares them; `cut`, how the rows are
// cut. `stage` is a literal.
Result<> run_column_pass(const Model& model, const StepTable& table, const MicroBatchOptions& cut,
                         const LearnerOptions& options, std::string_view stage, const ColumnCompute& compute,
                         std::span<std::vector<float>* const> out);

}  // namespace mortise
