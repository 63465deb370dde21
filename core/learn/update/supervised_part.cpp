// Weighs the tokens of recorded rows, and runs their micro-batches.
#include "learn/update/supervised_part.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "learn/update/packed_forward.h"
#include "learn/update/router_losses.h"
#include "model/head/log_prob_head.h"

namespace mortise {

namespace {

int64_t learnt_tokens(const StepTable& table, int64_t row) {
  const auto mask = table.of_row<column::ResponseMask>(row);
  return std::accumulate(mask.begin(), mask.end(), int64_t{0});
}

// The weight of every learnt token of each row: means over `rows_per_mean` rows, then over the means that have tokens.
std::vector<double> weights_of_rows(const StepTable& table, int64_t rows_per_mean) {
  const int64_t num_rows = table.num_rows();
  const int64_t size = rows_per_mean > 0 ? rows_per_mean : std::max<int64_t>(1, num_rows);
  std::vector<double> weights(static_cast<size_t>(num_rows), 0.0);
  double num_means = 0;
  for (int64_t begin = 0; begin < num_rows; begin += size) {
    const int64_t end = std::min(num_rows, begin + size);
    int64_t tokens = 0;
    for (int64_t row = begin; row < end; ++row) tokens += learnt_tokens(table, row);
    if (tokens == 0) continue;
    ++num_means;
    for (int64_t row = begin; row < end; ++row) weights[static_cast<size_t>(row)] = 1.0 / static_cast<double>(tokens);
  }
  for (double& weight : weights) weight /= std::max(1.0, num_means);
  return weights;
}

}  // namespace

SupervisedPart::SupervisedPart(const SupervisedRows& rows, const LearnerOptions& options)
    : rows_(rows),
      head_(options.head),
      plan_(plan_micro_batches(*rows.table, all_rows(*rows.table), options.micro_batch)),
      row_weight_(weights_of_rows(*rows.table, rows.rows_per_mean)) {
  for (int64_t row = 0; row < rows.table->num_rows(); ++row) num_tokens_ += learnt_tokens(*rows.table, row);
}

Result<LeafReport> SupervisedPart::compute(const Model& model, size_t micro, const PassOptions& pass,
                                           double coefficient, BackwardPass& backward, RouterLosses* routers,
                                           const Model* reference) const {
  LeafReport leaf;
  std::vector<double> weight;  // by token; 0: not learnt
  for (const int64_t row : plan_[micro]) {
    for (const uint8_t learnt : rows_.table->of_row<column::ResponseMask>(row))
      weight.push_back(learnt != 0 ? row_weight_[static_cast<size_t>(row)] : 0.0);
  }
  if (weight.empty()) return leaf;
  const PackedForward forward = TRY(forward_rows(model, *rows_.table, plan_[micro], pass));
  TRY(help_forward(reference));
  if (routers != nullptr) routers->note(forward, leaf);
  weight = forward.targets.own(std::move(weight));
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  double loss = 0, sum_of_probs = 0, count = 0;
  const auto on_chunk = [&](const HeadChunk& chunk) {
    for (int64_t t = chunk.begin; t < chunk.end; ++t) {
      const double w = weight[static_cast<size_t>(t)];
      if (w == 0.0) continue;
      const auto i = static_cast<size_t>(t - chunk.begin);
      const double log_prob = chunk.log_prob[i], prob = std::exp(log_prob);
      const double weighted = rows_.phi ? w * prob * (1.0 - prob) : w;
      loss -= weighted * log_prob;
      chunk.grad_log_prob[i] = -coefficient * weighted;
      sum_of_probs += prob;
      ++count;
    }
  };
  head_one_pass(forward.hidden_RH, model.head(), forward.targets_R, /*temperature=*/1.0, EntropyUse::kNone, on_chunk,
                d_hidden_RH, model.head_grad(), head_);
  TRY(check_tensor_ranks(model));
  const at::Tensor sums = at::tensor({loss, sum_of_probs, count}, at::kDouble);
  forward.targets.sum(sums);
  leaf.sums.loss = sums[0].item<double>();
  sum_of_probs = sums[1].item<double>();
  count = sums[2].item<double>();
  if (count > 0) leaf.metrics.add_mean("actor/sft_mix_prob", sum_of_probs / count, count);
  backward = forward.backward_pass(d_hidden_RH);
  leaf.has_gradient = true;
  return leaf;
}

}  // namespace mortise
