// UpdateSlice: some rows of an update with their columns, and room for what the head and the objective write: what one
// objective call sees. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "foundation/batch/token_weight.h"
#include "learn/objective/actor_objective.h"
#include "learn/update/micro_batches.h"

namespace mortise {

// Not zero; NaN counts: it must reach the norm that finds it.
[[nodiscard]] inline bool any_nonzero(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float value) { return value != 0.0F; });
}

struct UpdateSlice {
  std::vector<int64_t> rows;  // in the step's table
  StepTable table;            // these rows; log_prob, entropy and on_policy's old_log_prob are to be written
  std::vector<float> grad_log_prob, grad_entropy;  // [N]
  std::vector<float> clipped;                      // [N], or empty: nobody asks
  int64_t step = 1, update_index = 1;
  bool on_policy = false;  // the update's own log-probs are the old ones: the ratio is 1

  [[nodiscard]] size_t num_tokens() const { return grad_log_prob.size(); }
  [[nodiscard]] bool has_gradient() const { return any_nonzero(grad_log_prob) || any_nonzero(grad_entropy); }
  [[nodiscard]] std::span<float> log_prob() { return table.edit<column::LogProb>(); }
  [[nodiscard]] std::span<float> entropy() { return table.edit<column::Entropy>(); }
  [[nodiscard]] std::span<float> old_log_prob() { return table.edit<column::OldLogProb>(); }
  [[nodiscard]] std::span<const uint8_t> mask() const { return table.get<column::ResponseMask>(); }

  // The tokens' shares of the KL term.
  [[nodiscard]] std::span<const float> kl_weights() const {
    return table.has<column::KlWeight>() ? table.get<column::KlWeight>() : table.get<column::Weight>();
  }

  // What the objective gets of all tokens.
  [[nodiscard]] StepView input() const { return numbered(table.view()); }
  // The same of the tokens [begin, end), which lie in the rows whose offsets are given (relative to begin).
  [[nodiscard]] StepView input(size_t begin, size_t end, const Layout& layout) const {
    return numbered(table.view(begin, end, layout));
  }
  // The columns that nobody writes any more.
  [[nodiscard]] StepView given() const {
    StepView out = table.view();
    out.set<column::LogProb>({}).set<column::Entropy>({});
    if (on_policy) out.set<column::OldLogProb>({});
    return out;
  }
  ObjectiveGrad grad() { return {grad_log_prob, grad_entropy, clipped}; }
  ObjectiveGrad grad(size_t begin, size_t end) {
    return {std::span(grad_log_prob).subspan(begin, end - begin), std::span(grad_entropy).subspan(begin, end - begin)};
  }

 private:
  [[nodiscard]] StepView numbered(StepView view) const {
    view.step = step;
    view.update_index = update_index;
    return view;
  }
};

// `rows` are indices into the step's table, `row_id` their places in the update, `counts` those of the whole update.
Result<UpdateSlice> make_slice(const StepTable& step, std::span<const int64_t> rows, std::vector<int64_t> row_id,
                               const ActorObjective& objective, const UpdateCounts& counts);

// The counts of some rows of the table, by its response_mask.
UpdateCounts count_rows(const StepTable& table, std::span<const int64_t> rows);

// Puts the weight of every token into the column C of `part`, which holds rows of the update that `counts` is of.
template <class C = column::Weight>
Result<> put_weights(const TokenWeightOptions& aggregation, const UpdateCounts& counts, StepTable& part) {
  return token_weights(aggregation, counts, part.row_offsets(), part.get<column::ResponseMask>(), part.group_index(),
                       part.make<C>());
}

}  // namespace mortise
