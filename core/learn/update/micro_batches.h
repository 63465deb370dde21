// How the rows of a table are cut into micro-batches.
//
// The cut never changes a gradient beyond rounding: token weights come from the whole update's counts.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "foundation/batch/step_table.h"
#include "foundation/metrics/live.h"

namespace mortise {

// Larger passes cost memory and, on a CPU whose caches they overflow, time. On a GPU small passes cost time: each starts
// all its kernels, and products of few rows do not fill the device.
[[nodiscard]] constexpr int64_t default_pass_tokens(bool by_operators) { return by_operators ? 16384 : 2048; }

struct MicroBatchOptions {
  int64_t rows = 0;                                   // > 0: as few as hold at most so many rows each
  int64_t token_budget = default_pass_tokens(false);  // else: as few as hold at most so many tokens each
  // Rows whose advantages are all 0 mostly get no gradient. In micro-batches of their own they need no backward pass.
  bool sets_idle_rows_apart = true;
  // With a token budget: a micro-batch has groups that follow one another, although others may then be larger.
  bool keeps_order = false;
};

// Cuts `rows` (indices into the table) into micro-batches that are alike in tokens, so that the largest, which decides
// on memory, is as small as their number allows. A group stays together where it fits, so that its prompt is computed
// once, and apart from groups without advantage (but where all rows fit into one by their number); a row longer than
// the budget gets a micro-batch of its own. Deterministic.
std::vector<std::vector<int64_t>> plan_micro_batches(const StepTable& table, std::span<const int64_t> rows,
                                                     const MicroBatchOptions& options);

// Some token of the row has an advantage that is not 0; false in a table without advantages.
[[nodiscard]] bool has_advantage(const StepTable& table, int64_t row);

// 0, 1, 2 ...: all rows of the table.
std::vector<int64_t> all_rows(const StepTable& table);

// The live view shows that micro-batch `index` of so many is done.
inline void show_micro_batch(std::string_view stage, size_t index, size_t total) {
  live_stage({stage}, "micro-batches", static_cast<int64_t>(index) + 1, static_cast<int64_t>(total));
}

}  // namespace mortise
