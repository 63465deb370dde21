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

// Calls `compute` with the forward pass of each micro-batch of this rank, and its rows.
//   compute   gives one tensor [R] for each of `out`: a number for each target of this rank
//   out       gets [N], one number for each token of the table
//   cut       how the rows are cut into micro-batches
//   options   how passes run, and which ranks share them
//   stage     a literal: the name of the progress bar
Result<> run_column_pass(const Model& model, const StepTable& table, const MicroBatchOptions& cut,
                         const LearnerOptions& options, std::string_view stage, const ColumnCompute& compute,
                         std::span<std::vector<float>* const> out);

}  // namespace mortise
