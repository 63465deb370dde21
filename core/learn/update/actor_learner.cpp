#include "learn/update/actor_learner.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "learn/update/finite_step.h"
#include "learn/update/full_kl_term.h"
#include "model/head/squared_probs.h"

namespace mortise {

namespace {

void copy_to_floats(const at::Tensor& values, std::span<float> out) {
  const at::Tensor converted = values.scalar_type() == at::kFloat ? values : values.to(at::kFloat);
  std::copy_n(converted.const_data_ptr<float>(), out.size(), out.begin());
}

at::Tensor tensor_of(std::span<float> values, at::ScalarType dtype) {
  const at::Tensor view = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
  return dtype == at::kFloat ? view : view.to(dtype);
}

// Of the tokens that carry loss. Weights that overflow show here first; a plugin must not be blamed for them.
bool all_finite(std::span<const float> values, std::span<const uint8_t> mask) {
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask[t] != 0 && !std::isfinite(values[t])) return false;
  }
  return true;
}

}  // namespace

struct ActorLearner::Update {
  const TrainBatch& batch;
  std::span<const int64_t> rows;
  int64_t step, update_index;
  std::span<float> log_prob_out;
  UpdateCounts counts;                         // of the whole update
  std::unordered_map<int64_t, size_t> places;  // row of the batch -> row of the update
  std::vector<std::vector<int64_t>> micro_batches;

  Update(const TrainBatch& batch_in, std::span<const int64_t> rows_in, int64_t step_in, int64_t update_index_in,
         std::span<float> log_prob_out_in, const MicroBatchOptions& cut)
      : batch(batch_in),
        rows(rows_in),
        step(step_in),
        update_index(update_index_in),
        log_prob_out(log_prob_out_in),
        micro_batches(plan_micro_batches(batch_in, rows_in, cut)) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto r = static_cast<size_t>(rows[i]);
      places[rows[i]] = i;
      const int64_t length = batch.row_tokens(rows[i]);
      const std::array<int64_t, 2> offsets{0, length};
      const auto mask = std::span(batch.response_mask)
                            .subspan(static_cast<size_t>(batch.row_offsets[r]), static_cast<size_t>(length));
      counts.add(count_update(offsets, mask, std::span(&batch.group_index[r], 1)));
    }
  }

  void keep_log_probs(const UpdateSlice& slice) const {
    if (log_prob_out.empty()) return;
    for (size_t i = 0; i < slice.rows.size(); ++i) {
      std::copy(slice.log_prob.begin() + slice.row_offsets[i], slice.log_prob.begin() + slice.row_offsets[i + 1],
                log_prob_out.begin() + batch.row_offsets[static_cast<size_t>(slice.rows[i])]);
    }
  }

  // visit(token of the micro-batch, token of the whole update) in the order of the micro-batch.
  template <class Visit>
  void for_tokens(const std::vector<int64_t>& micro, const UpdateSlice& whole, const Visit& visit) const {
    size_t at_micro = 0;
    for (const int64_t row : micro) {
      const size_t r = places.at(row);
      for (int64_t t = whole.row_offsets[r]; t < whole.row_offsets[r + 1]; ++t)
        visit(at_micro++, static_cast<size_t>(t));
    }
  }
};

ActorLearner::ActorLearner(Model& model, AdamW& optimizer, ActorObjective& objective, const LearnerOptions& options)
    : model_(&model), optimizer_(&optimizer), objective_(&objective), options_(options) {}

Result<UpdateSlice> ActorLearner::slice(const Update& update, std::span<const int64_t> rows) const {
  std::vector<int64_t> row_id;
  for (const int64_t row : rows) row_id.push_back(static_cast<int64_t>(update.places.at(row)));
  UpdateSlice out = TRY(make_slice(update.batch, rows, row_id, objective_->aggregation(), update.counts));
  out.step = update.step;
  out.update_index = update.update_index;
  return out;
}

namespace {

// visit(forward, micro-batch) over all rows of the batch, without gradient.
template <class Visit>
Result<> for_passes(const Model& model, const TrainBatch& batch, const MicroBatchOptions& cut, const PassOptions& pass,
                    const Visit& visit) {
  c10::NoGradGuard no_grad;
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_rows()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  for (const std::vector<int64_t>& micro : plan_micro_batches(batch, rows, cut)) {
    const PackedForward forward = TRY(forward_rows(model, batch, micro, pass));
    visit(forward, micro);
  }
  return {};
}

// One number per response token of a micro-batch to their places in the batch.
void scatter(const at::Tensor& from, const TrainBatch& batch, const std::vector<int64_t>& micro,
             std::vector<float>& to) {
  std::vector<float> values(static_cast<size_t>(from.numel()));
  copy_to_floats(from, values);
  auto at = values.begin();
  for (const int64_t row : micro) {
    std::copy_n(at, batch.row_tokens(row), to.begin() + batch.row_offsets[static_cast<size_t>(row)]);
    at += batch.row_tokens(row);
  }
}

}  // namespace

Result<std::vector<float>> ActorLearner::log_probs(const Model& model, const TrainBatch& batch,
                                                   const MicroBatchOptions* passes, std::vector<float>* entropy) const {
  std::vector<float> out(static_cast<size_t>(batch.num_tokens()));
  if (entropy != nullptr) entropy->assign(out.size(), 0.0F);
  const MicroBatchOptions& cut = passes != nullptr ? *passes : options_.micro_batch;
  TRY(for_passes(model, batch, cut, options_.pass, [&](const PackedForward& forward, const auto& micro) {
    const LogProbs result = head_log_prob(forward.hidden_RH, model.head(), forward.targets_R, options_.temperature,
                                          entropy != nullptr, options_.head);
    scatter(result.log_prob_R, batch, micro, out);
    if (entropy != nullptr) scatter(result.entropy_R, batch, micro, *entropy);
  }));
  return out;
}

Result<std::vector<float>> ActorLearner::sums_of_squared_probs(const Model& model, const TrainBatch& batch) const {
  std::vector<float> out(static_cast<size_t>(batch.num_tokens()));
  TRY(for_passes(
      model, batch, options_.micro_batch, options_.pass, [&](const PackedForward& forward, const auto& micro) {
        scatter(head_sum_pi_squared(forward.hidden_RH, model.head(), options_.temperature), batch, micro, out);
      }));
  return out;
}

Result<> ActorLearner::backward_one_pass(UpdateSlice& slice, const PackedForward& forward, const at::Tensor& d_extra_RH,
                                         UpdateReport& report) {
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  std::optional<Error> error;  // the head cannot carry a Result; the first one stops all further calls
  std::vector<int64_t> offsets, ids, groups;
  size_t row = 0;
  const auto on_chunk = [&](const HeadChunk& chunk) {
    if (error || report.skipped) return;
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
    const ObjectiveInput input = slice.input(begin, end, {offsets, ids, groups});
    report.skipped = !all_finite(input.log_prob, input.response_mask);
    if (report.skipped) return;
    auto sums = objective_->evaluate(input, slice.grad(begin, end), nullptr);
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
                d_hidden_RH, model_->head_grad(), options_.head);
  if (error) return std::move(*error);
  if (report.skipped) return {};
  // Sums and metrics once more over whole rows, so that they do not depend on where the chunks were cut.
  const size_t n = slice.num_tokens();
  report.sums.add(TRY(objective_->evaluate(slice.input(0, n, slice.layout()), slice.grad(0, n), &report.metrics)));
  if (d_extra_RH.defined()) d_hidden_RH.add_(d_extra_RH);
  if (slice.has_gradient() || d_extra_RH.defined()) forward.backward(d_hidden_RH);
  return {};
}

void ActorLearner::inject(const PackedForward& forward, std::span<float> grad_log_prob, std::span<float> grad_entropy,
                          std::span<const TokenNorm> norms, const at::Tensor& d_extra_RH) {
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  const auto dtype = forward.hidden_RH.scalar_type();
  head_backward(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature,
                tensor_of(grad_log_prob, dtype),
                objective_->uses_entropy_gradient() ? tensor_of(grad_entropy, dtype) : at::Tensor(), d_hidden_RH,
                model_->head_grad(), norms, options_.head);
  if (d_extra_RH.defined()) d_hidden_RH.add_(d_extra_RH);
  forward.backward(d_hidden_RH);
}

Result<> ActorLearner::backward_two_pass(UpdateSlice& slice, const PackedForward& forward, const at::Tensor& d_extra_RH,
                                         UpdateReport& report) {
  const LogProbs probs =
      head_log_prob(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature, true, options_.head);
  copy_to_floats(probs.log_prob_R, slice.log_prob);
  copy_to_floats(probs.entropy_R, slice.entropy);
  if (slice.on_policy) slice.old_log_prob = slice.log_prob;
  report.skipped = !all_finite(slice.log_prob, slice.mask);
  if (report.skipped) return {};
  const size_t n = slice.num_tokens();
  report.sums.add(TRY(objective_->evaluate(slice.input(0, n, slice.layout()), slice.grad(0, n), &report.metrics)));
  if (slice.has_gradient() || d_extra_RH.defined())
    inject(forward, slice.grad_log_prob, slice.grad_entropy, probs.norms_R, d_extra_RH);
  return {};
}

// Log-probs and entropies of the whole update, without gradient; `norms` only where they had to be computed.
Result<> ActorLearner::measure_whole_update(Update& update, UpdateSlice& whole, std::vector<TokenNorm>& norms) const {
  const TrainBatch& batch = update.batch;
  if (batch.old_is_current && !whole.on_policy && !batch.old_entropy.empty()) {
    whole.log_prob = whole.old_log_prob;
    for (size_t i = 0; i < whole.rows.size(); ++i) {
      const auto from = batch.old_entropy.begin() + batch.row_offsets[static_cast<size_t>(whole.rows[i])];
      std::copy_n(from, batch.row_tokens(whole.rows[i]), whole.entropy.begin() + whole.row_offsets[i]);
    }
    return {};
  }
  c10::NoGradGuard no_grad;
  std::vector<float> log_prob, entropy;
  norms.resize(whole.num_tokens());
  for (const std::vector<int64_t>& micro : update.micro_batches) {
    const PackedForward out = TRY(forward_rows(*model_, batch, micro, options_.pass));
    const LogProbs probs =
        head_log_prob(out.hidden_RH, model_->head(), out.targets_R, options_.temperature, true, options_.head);
    log_prob.resize(static_cast<size_t>(out.targets_R.numel()));
    entropy.resize(log_prob.size());
    copy_to_floats(probs.log_prob_R, log_prob);
    copy_to_floats(probs.entropy_R, entropy);
    update.for_tokens(micro, whole, [&](size_t from, size_t to) {
      whole.log_prob[to] = log_prob[from];
      whole.entropy[to] = entropy[from];
      norms[to] = probs.norms_R[from];
    });
  }
  return {};
}

Result<> ActorLearner::backward_whole_update(Update& update, UpdateSlice& whole, UpdateReport& report) {
  std::vector<TokenNorm> norms, micro_norms;
  TRY(measure_whole_update(update, whole, norms));
  if (whole.on_policy) whole.old_log_prob = whole.log_prob;
  report.skipped = !all_finite(whole.log_prob, whole.mask);
  if (report.skipped) return {};
  const size_t n = whole.num_tokens();
  report.sums.add(TRY(objective_->evaluate(whole.input(0, n, whole.layout()), whole.grad(0, n), &report.metrics)));
  std::vector<float> grad_log_prob, grad_entropy;
  for (const std::vector<int64_t>& micro : update.micro_batches) {
    grad_log_prob.clear();
    grad_entropy.clear();
    micro_norms.clear();
    update.for_tokens(micro, whole, [&](size_t, size_t from) {
      grad_log_prob.push_back(whole.grad_log_prob[from]);
      grad_entropy.push_back(whole.grad_entropy[from]);
      if (!norms.empty()) micro_norms.push_back(norms[from]);
    });
    const bool has_gradient = any_nonzero(grad_log_prob) || any_nonzero(grad_entropy);
    if (!has_gradient && !objective_->uses_full_kl()) continue;
    const PackedForward out = TRY(forward_rows(*model_, update.batch, micro, options_.pass));
    const UpdateSlice part = TRY(slice(update, micro));
    const FullKlTerm kl = TRY(full_kl_term(*objective_, *model_, update.batch, part, out, options_));
    report.sums.add(kl.sums);
    if (has_gradient || kl.d_hidden_RH.defined()) inject(out, grad_log_prob, grad_entropy, micro_norms, kl.d_hidden_RH);
  }
  return {};
}

Result<> ActorLearner::accumulate(Update& update, UpdateReport& report) {
  const Coupling coupling = objective_->coupling();
  // Where a micro-batch is the update, seeing the one is seeing the other.
  if (coupling > Coupling::kRow && update.micro_batches.size() > 1) {
    UpdateSlice whole = TRY(slice(update, update.rows));
    TRY(backward_whole_update(update, whole, report));
    update.keep_log_probs(whole);
    return {};
  }
  for (const std::vector<int64_t>& micro : update.micro_batches) {
    UpdateSlice part = TRY(slice(update, micro));
    const PackedForward out = TRY(forward_rows(*model_, update.batch, micro, options_.pass));
    if (out.targets_R.numel() == 0) {  // rows without tokens still count in what is told per row
      report.sums.add(TRY(objective_->evaluate(part.input(0, 0, part.layout()), part.grad(0, 0), &report.metrics)));
      continue;
    }
    const FullKlTerm kl = TRY(full_kl_term(*objective_, *model_, update.batch, part, out, options_));
    if (coupling == Coupling::kToken)
      TRY(backward_one_pass(part, out, kl.d_hidden_RH, report));
    else
      TRY(backward_two_pass(part, out, kl.d_hidden_RH, report));
    if (report.skipped) return {};
    report.sums.add(kl.sums);
    update.keep_log_probs(part);
  }
  return {};
}

Result<UpdateReport> ActorLearner::update(const TrainBatch& batch, std::span<const int64_t> rows, double lr,
                                          int64_t step, int64_t update_index, std::span<float> log_prob_out) {
  UpdateReport report;
  report.lr = lr;
  model_->zero_grad();
  Update update(batch, rows, step, update_index, log_prob_out, options_.micro_batch);
  TRY(accumulate(update, report));
  if (report.skipped) {
    report.grad_norm = report.sums.loss = std::numeric_limits<double>::quiet_NaN();
    return report;
  }
  const FiniteStep done = step_if_finite(*model_, *optimizer_, report.sums.loss, lr, options_.grad_clip);
  report.grad_norm = done.grad_norm;
  report.skipped = done.skipped;
  return report;
}

}  // namespace mortise
