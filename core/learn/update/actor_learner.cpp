#include "learn/update/actor_learner.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "model/head/squared_probs.h"

namespace mortise {

namespace {

// NaN counts: it must reach the norm that finds it.
bool any_nonzero(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float value) { return value != 0.0F; });
}

}  // namespace

// The per-token inputs of some rows, gathered from the batch: what one objective call sees.
struct ActorLearner::Slice {
  std::vector<int64_t> rows, row_id, group_index, row_offsets{0};
  std::vector<uint8_t> mask;
  std::vector<float> log_prob, entropy, old_log_prob, advantages, ref_log_prob, rollout_log_prob, rollout_is_weights,
      weight;
  std::vector<float> grad_log_prob, grad_entropy;
  int64_t step = 1, update_index = 1;
  bool on_policy = false;

  [[nodiscard]] size_t num_tokens() const { return mask.size(); }

  void resize_outputs() {
    for (auto* values : {&log_prob, &entropy, &grad_log_prob, &grad_entropy}) values->resize(num_tokens());
    if (on_policy) old_log_prob.resize(num_tokens());
  }

  // Input of the tokens [begin, end), which lie in the rows whose offsets are given (relative to begin).
  [[nodiscard]] ObjectiveInput input(size_t begin, size_t end, const Layout& layout) const {
    const auto part = [&](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return values.empty() ? std::span<const T>{} : std::span<const T>(values).subspan(begin, end - begin);
    };
    ObjectiveInput in;
    in.layout = layout;
    in.log_prob = part(log_prob);
    in.old_log_prob = part(old_log_prob);
    in.advantages = part(advantages);
    in.response_mask = part(mask);
    in.weight = part(weight);
    in.ref_log_prob = part(ref_log_prob);
    in.rollout_log_prob = part(rollout_log_prob);
    in.rollout_is_weights = part(rollout_is_weights);
    in.entropy = part(entropy);
    in.step = step;
    in.update_index = update_index;
    return in;
  }
  ObjectiveGrad grad(size_t begin, size_t end) {
    return {std::span(grad_log_prob).subspan(begin, end - begin), std::span(grad_entropy).subspan(begin, end - begin)};
  }
  [[nodiscard]] Layout layout() const { return {row_offsets, row_id, group_index}; }
  [[nodiscard]] bool has_gradient() const { return any_nonzero(grad_log_prob) || any_nonzero(grad_entropy); }
};

namespace {

void copy_to_floats(const at::Tensor& values, std::span<float> out) {
  const at::Tensor converted = values.scalar_type() == at::kFloat ? values : values.to(at::kFloat);
  std::copy_n(converted.const_data_ptr<float>(), out.size(), out.begin());
}

at::Tensor tensor_of(std::span<float> values, at::ScalarType dtype) {
  const at::Tensor view = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
  return dtype == at::kFloat ? view : view.to(dtype);
}

}  // namespace

ActorLearner::ActorLearner(Model& model, AdamW& optimizer, ActorObjective& objective, const LearnerOptions& options)
    : model_(&model), optimizer_(&optimizer), objective_(&objective), options_(options) {}

Result<ActorLearner::Slice> ActorLearner::slice(const TrainBatch& batch, std::span<const int64_t> rows,
                                                std::span<const int64_t> row_id, const UpdateCounts& counts,
                                                int64_t step, int64_t update_index) const {
  Slice out;
  out.step = step;
  out.update_index = update_index;
  out.on_policy = batch.old_log_prob.empty();
  out.rows.assign(rows.begin(), rows.end());
  out.row_id.assign(row_id.begin(), row_id.end());
  for (const int64_t row : rows) {
    const auto r = static_cast<size_t>(row);
    const auto begin = batch.row_offsets[r];
    const auto end = batch.row_offsets[r + 1];
    out.group_index.push_back(batch.group_index[r]);
    out.row_offsets.push_back(out.row_offsets.back() + end - begin);
    out.mask.insert(out.mask.end(), batch.response_mask.begin() + begin, batch.response_mask.begin() + end);
    for (auto [from, to] :
         {std::pair{&batch.advantages, &out.advantages}, std::pair{&batch.old_log_prob, &out.old_log_prob},
          std::pair{&batch.ref_log_prob, &out.ref_log_prob}, std::pair{&batch.rollout_log_prob, &out.rollout_log_prob},
          std::pair{&batch.rollout_is_weights, &out.rollout_is_weights}}) {
      if (!from->empty()) to->insert(to->end(), from->begin() + begin, from->begin() + end);
    }
  }
  out.weight.resize(out.num_tokens());
  TRY(token_weights(objective_->aggregation(), counts, out.row_offsets, out.mask, out.group_index, out.weight));
  out.resize_outputs();
  return out;
}

namespace {

// [N] one number per response token, in the batch's order, from passes over its rows.
template <class PerToken>
Result<std::vector<float>> number_per_token(const Model& model, const TrainBatch& batch, const MicroBatchOptions& cut,
                                            const PerToken& of_forward) {
  c10::NoGradGuard no_grad;
  std::vector<float> out(static_cast<size_t>(batch.num_tokens()));
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_rows()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  for (const std::vector<int64_t>& micro : plan_micro_batches(batch, rows, cut)) {
    const PackedForward forward = TRY(forward_rows(model, batch, micro));
    std::vector<float> values(static_cast<size_t>(forward.targets_R.numel()));
    copy_to_floats(of_forward(forward), values);
    size_t from = 0;
    for (const int64_t row : micro) {
      const auto count = static_cast<size_t>(batch.row_tokens(row));
      std::copy_n(values.begin() + static_cast<int64_t>(from), count,
                  out.begin() + batch.row_offsets[static_cast<size_t>(row)]);
      from += count;
    }
  }
  return out;
}

}  // namespace

Result<std::vector<float>> ActorLearner::log_probs(const Model& model, const TrainBatch& batch,
                                                   const MicroBatchOptions* passes) const {
  return number_per_token(
      model, batch, passes != nullptr ? *passes : options_.micro_batch, [&](const PackedForward& forward) {
        return head_log_prob(forward.hidden_RH, model.head(), forward.targets_R, options_.temperature, false)
            .log_prob_R;
      });
}

Result<std::vector<float>> ActorLearner::sums_of_squared_probs(const Model& model, const TrainBatch& batch) const {
  return number_per_token(model, batch, options_.micro_batch, [&](const PackedForward& forward) {
    return head_sum_pi_squared(forward.hidden_RH, model.head(), options_.temperature);
  });
}

Result<> ActorLearner::backward_one_pass(Slice& slice, const PackedForward& forward, UpdateReport& report) {
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  std::optional<Error> error;  // the head cannot carry a Result; the first one stops all further calls
  std::vector<int64_t> offsets, ids, groups;
  size_t row = 0;
  const auto on_chunk = [&](const HeadChunk& chunk) {
    if (error) return;
    const auto begin = static_cast<size_t>(chunk.begin);
    const auto end = static_cast<size_t>(chunk.end);
    for (size_t t = begin; t < end; ++t) {
      slice.log_prob[t] = static_cast<float>(chunk.log_prob[t - begin]);
      slice.entropy[t] = static_cast<float>(chunk.entropy[t - begin]);
      if (slice.on_policy) slice.old_log_prob[t] = slice.log_prob[t];
    }
    // The pieces of rows that lie in this chunk.
    offsets.assign(1, 0);
    ids.clear();
    groups.clear();
    while (slice.row_offsets[row + 1] <= chunk.begin && row + 1 < slice.rows.size()) ++row;
    for (size_t r = row; r < slice.rows.size() && slice.row_offsets[r] < chunk.end; ++r) {
      offsets.push_back(std::min(slice.row_offsets[r + 1], chunk.end) - chunk.begin);
      ids.push_back(slice.row_id[r]);
      groups.push_back(slice.group_index[r]);
    }
    auto sums = objective_->evaluate(slice.input(begin, end, {offsets, ids, groups}), slice.grad(begin, end), nullptr);
    if (!sums.ok()) {
      error = std::move(sums).error();
      return;
    }
    for (size_t t = begin; t < end; ++t) {
      chunk.grad_log_prob[t - begin] = static_cast<double>(slice.grad_log_prob[t]);
      if (!chunk.grad_entropy.empty()) chunk.grad_entropy[t - begin] = static_cast<double>(slice.grad_entropy[t]);
    }
  };
  const EntropyUse entropy = objective_->uses_entropy_gradient() ? EntropyUse::kGradient : EntropyUse::kValue;
  head_one_pass(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature, entropy, on_chunk,
                d_hidden_RH, model_->head_grad());
  if (error) return std::move(*error);
  // Sums and metrics once more over whole rows, so that they do not depend on where the chunks were cut.
  const size_t n = slice.num_tokens();
  report.sums.add(TRY(objective_->evaluate(slice.input(0, n, slice.layout()), slice.grad(0, n), &report.metrics)));
  if (slice.has_gradient()) forward.selected_RH.backward(d_hidden_RH);
  return {};
}

Result<> ActorLearner::backward_two_pass(Slice& slice, const PackedForward& forward, UpdateReport& report) {
  const VocabularyHead head = model_->head();
  const LogProbs probs = head_log_prob(forward.hidden_RH, head, forward.targets_R, options_.temperature, true);
  copy_to_floats(probs.log_prob_R, slice.log_prob);
  copy_to_floats(probs.entropy_R, slice.entropy);
  if (slice.on_policy) slice.old_log_prob = slice.log_prob;
  const size_t n = slice.num_tokens();
  report.sums.add(TRY(objective_->evaluate(slice.input(0, n, slice.layout()), slice.grad(0, n), &report.metrics)));
  if (!slice.has_gradient()) return {};
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  const auto dtype = forward.hidden_RH.scalar_type();
  head_backward(forward.hidden_RH, head, forward.targets_R, options_.temperature, tensor_of(slice.grad_log_prob, dtype),
                objective_->uses_entropy_gradient() ? tensor_of(slice.grad_entropy, dtype) : at::Tensor(), d_hidden_RH,
                model_->head_grad());
  forward.selected_RH.backward(d_hidden_RH);
  return {};
}

Result<> ActorLearner::backward_whole_update(const TrainBatch& batch, std::span<const int64_t> rows,
                                             const std::vector<std::vector<int64_t>>& micro_batches, Slice& whole,
                                             UpdateReport& report) {
  std::unordered_map<int64_t, size_t> place;  // row of the batch -> row of the update
  for (size_t i = 0; i < rows.size(); ++i) place[rows[i]] = i;
  // Copies the tokens of a micro-batch between its own flat order and the update's.
  const auto for_tokens = [&](const std::vector<int64_t>& micro, const auto& visit) {
    size_t at_micro = 0;
    for (const int64_t row : micro) {
      const size_t r = place[row];
      for (int64_t t = whole.row_offsets[r]; t < whole.row_offsets[r + 1]; ++t)
        visit(at_micro++, static_cast<size_t>(t));
    }
  };
  const VocabularyHead head = model_->head();
  std::vector<float> log_prob, entropy;
  for (const std::vector<int64_t>& micro : micro_batches) {
    c10::NoGradGuard no_grad;
    const PackedForward out = TRY(forward_rows(*model_, batch, micro));
    const LogProbs probs = head_log_prob(out.hidden_RH, head, out.targets_R, options_.temperature, true);
    log_prob.resize(static_cast<size_t>(out.targets_R.numel()));
    entropy.resize(log_prob.size());
    copy_to_floats(probs.log_prob_R, log_prob);
    copy_to_floats(probs.entropy_R, entropy);
    for_tokens(micro, [&](size_t from, size_t to) {
      whole.log_prob[to] = log_prob[from];
      whole.entropy[to] = entropy[from];
    });
  }
  if (whole.on_policy) whole.old_log_prob = whole.log_prob;
  const size_t n = whole.num_tokens();
  report.sums.add(TRY(objective_->evaluate(whole.input(0, n, whole.layout()), whole.grad(0, n), &report.metrics)));
  std::vector<float> grad_log_prob, grad_entropy;
  for (const std::vector<int64_t>& micro : micro_batches) {
    grad_log_prob.clear();
    grad_entropy.clear();
    for_tokens(micro, [&](size_t, size_t from) {
      grad_log_prob.push_back(whole.grad_log_prob[from]);
      grad_entropy.push_back(whole.grad_entropy[from]);
    });
    if (!any_nonzero(grad_log_prob) && !any_nonzero(grad_entropy)) continue;
    const PackedForward out = TRY(forward_rows(*model_, batch, micro));
    const at::Tensor d_hidden_RH = at::empty_like(out.hidden_RH);
    const auto dtype = out.hidden_RH.scalar_type();
    head_backward(out.hidden_RH, head, out.targets_R, options_.temperature, tensor_of(grad_log_prob, dtype),
                  objective_->uses_entropy_gradient() ? tensor_of(grad_entropy, dtype) : at::Tensor(), d_hidden_RH,
                  model_->head_grad());
    out.selected_RH.backward(d_hidden_RH);
  }
  return {};
}

Result<> ActorLearner::accumulate(const TrainBatch& batch, std::span<const int64_t> rows, int64_t step,
                                  int64_t update_index, std::span<float> log_prob_out, UpdateReport& report) {
  UpdateCounts counts;
  std::unordered_map<int64_t, int64_t> row_id;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto r = static_cast<size_t>(rows[i]);
    row_id[rows[i]] = static_cast<int64_t>(i);
    const int64_t length = batch.row_tokens(rows[i]);
    const std::array<int64_t, 2> offsets{0, length};
    counts.add(count_update(
        offsets,
        std::span(batch.response_mask).subspan(static_cast<size_t>(batch.row_offsets[r]), static_cast<size_t>(length)),
        std::span(&batch.group_index[r], 1)));
  }
  const auto keep_log_probs = [&](const Slice& slice) {
    if (log_prob_out.empty()) return;
    for (size_t i = 0; i < slice.rows.size(); ++i) {
      std::copy(slice.log_prob.begin() + slice.row_offsets[i], slice.log_prob.begin() + slice.row_offsets[i + 1],
                log_prob_out.begin() + batch.row_offsets[static_cast<size_t>(slice.rows[i])]);
    }
  };
  const auto micro_batches = plan_micro_batches(batch, rows, options_.micro_batch);
  const auto ids_of = [&](std::span<const int64_t> part) {
    std::vector<int64_t> ids;
    for (const int64_t row : part) ids.push_back(row_id[row]);
    return ids;
  };
  if (objective_->coupling() > Coupling::kRow) {
    Slice whole = TRY(slice(batch, rows, ids_of(rows), counts, step, update_index));
    TRY(backward_whole_update(batch, rows, micro_batches, whole, report));
    keep_log_probs(whole);
    return {};
  }
  for (const std::vector<int64_t>& micro : micro_batches) {
    Slice part = TRY(slice(batch, micro, ids_of(micro), counts, step, update_index));
    const PackedForward out = TRY(forward_rows(*model_, batch, micro));
    if (out.targets_R.numel() == 0) continue;
    if (objective_->coupling() == Coupling::kToken)
      TRY(backward_one_pass(part, out, report));
    else
      TRY(backward_two_pass(part, out, report));
    keep_log_probs(part);
  }
  return {};
}

Result<UpdateReport> ActorLearner::update(const TrainBatch& batch, std::span<const int64_t> rows, double lr,
                                          int64_t step, int64_t update_index, std::span<float> log_prob_out) {
  UpdateReport report;
  report.lr = lr;
  model_->zero_grad();
  TRY(accumulate(batch, rows, step, update_index, log_prob_out, report));
  // Where no pass had a gradient to send back, it is zero, and the optimizer's moments still decay.
  for (const OptimizedParameter& parameter : optimizer_->parameters()) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter.tensor.detach());
  }
  report.grad_norm = global_grad_norm(optimizer_->parameters());
  report.skipped = !std::isfinite(report.grad_norm) || !std::isfinite(report.sums.loss);
  if (!report.skipped) optimizer_->step(lr, clip_factor(report.grad_norm, options_.grad_clip));
  return report;
}

}  // namespace mortise
