// Runs the micro-batches of log-prob passes and updates, in one or two passes.
#include "learn/update/actor_learner.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "foundation/batch/float_bytes.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/column_pass.h"
#include "learn/update/finite_step.h"
#include "learn/update/kept_pass.h"
#include "learn/update/policy_update.h"
#include "learn/update/router_losses.h"
#include "learn/update/row_experts.h"
#include "learn/update/small_weights.h"
#include "learn/update/vocabulary_terms.h"
#include "model/head/kept_head.h"
#include "model/head/squared_probs.h"
#include "model/tensor/compute_team.h"

namespace mortise {

namespace {

void copy_to_floats(const at::Tensor& values, std::span<float> out) {
  const at::Tensor converted = values.scalar_type() == at::kFloat ? values : values.to(at::kFloat);
  std::copy_n(converted.const_data_ptr<float>(), out.size(), out.begin());
}

// `share` times the values.
at::Tensor tensor_of(std::span<float> values, double share, at::ScalarType dtype) {
  const at::Tensor view = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
  if (share != 1.0) return view.to(dtype).mul(share);
  return dtype == at::kFloat ? view : view.to(dtype);
}

// Checks the tokens with a loss. Overflowing weights show here first; a plugin must not get the blame for them.
bool all_finite(std::span<const float> values, std::span<const uint8_t> mask) {
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask[t] != 0 && !std::isfinite(values[t])) return false;
  }
  return true;
}

}  // namespace

ActorLearner::ActorLearner(Model& model, Optimizer& optimizer, ActorObjective& objective, const LearnerOptions& options)
    : model_(&model), optimizer_(&optimizer), objective_(&objective), options_(options) {
  const WeightShards* const own = shards_of(model);
  const WeightShards* const reference = options.reference != nullptr ? shards_of(*options.reference) : nullptr;
  if (own != nullptr && reference != nullptr) own->pair_heads(*reference);
}

Result<UpdateSlice> ActorLearner::slice(const PolicyUpdate& update, std::span<const int64_t> rows) const {
  std::vector<int64_t> row_id;
  for (const int64_t row : rows) row_id.push_back(static_cast<int64_t>(update.places.at(row)));
  UpdateSlice out = TRY(make_slice(update.table, rows, std::move(row_id), *objective_, update.counts));
  if (update.has_trace()) out.clipped.resize(out.num_tokens());
  out.step = update.place.step;
  out.update_index = update.place.update_index;
  return out;
}

Result<std::vector<float>> ActorLearner::log_probs(const Model& model, const StepTable& table,
                                                   const MicroBatchOptions* passes, std::vector<float>* entropy,
                                                   ExpertChoices* experts) const {
  std::vector<float> out;
  std::vector<std::vector<float>*> columns{&out};
  if (entropy != nullptr) columns.push_back(entropy);
  MicroBatchOptions cut = passes != nullptr ? *passes : options_.micro_batch;
  LearnerOptions options = options_;
  options.pass.replays_experts = &model == model_;
  options.pass.records_experts = experts != nullptr;
  if (&model == model_ && options.sampled != nullptr && options.sampled->is_current()) {
    options.pass.sampled = options.sampled;
    cut.keeps_order = true;
  }
  if (&model == options_.reference) options.share_tokens(options_.reference_sequence);
  RowExperts taken(table);
  const auto compute = [&](const PackedForward& forward, std::span<const int64_t> rows) {
    if (experts != nullptr) taken.note(rows, forward.experts);
    const LogProbs result = head_probs(model, forward, table.kept_of(rows), entropy != nullptr);
    std::vector<at::Tensor> numbers{result.log_prob_R};
    if (entropy != nullptr) numbers.push_back(result.entropy_R);
    return numbers;
  };
  TRY(run_column_pass(model, table, cut, options, "log-probs", compute, columns));
  if (experts != nullptr) *experts = TRY(taken.of_all_ranks(*options_.ranks.communicator));
  return out;
}

Result<std::vector<float>> ActorLearner::sums_of_squared_probs(const Model& model, const StepTable& table) const {
  std::vector<float> out;
  const auto compute = [&](const PackedForward& forward, std::span<const int64_t>) {
    return std::vector<at::Tensor>{head_sum_pi_squared(forward.hidden_RH, model.head(), options_.temperature)};
  };
  std::vector<float>* const columns[] = {&out};
  LearnerOptions options = options_;
  options.pass.replays_experts = true;
  TRY(run_column_pass(model, table, options_.micro_batch, options, "sums of squared probabilities", compute, columns));
  return out;
}

Result<KeptCount> ActorLearner::keep_tokens(StepTable& table, const Sampling& sampling) const {
  LearnerOptions options = options_;
  options.pass.replays_experts = true;
  return put_kept_tokens(*model_, table, sampling, options);
}

// The numbers of this rank's targets: over the kept tokens, if there are any, else over the whole vocabulary. `kept` is
// that of all targets.
LogProbs ActorLearner::head_probs(const Model& model, const PackedForward& forward, const KeptTokens& kept,
                                  bool want_entropy) const {
  if (!kept.empty()) {
    return kept_log_prob(forward.hidden_RH, model.head(), forward.targets_R, options_.temperature,
                         forward.targets.own(kept));
  }
  return head_log_prob(forward.hidden_RH, model.head(), forward.targets_R, options_.temperature, want_entropy,
                       options_.head);
}

Result<BackwardPass> ActorLearner::one_pass(UpdateSlice& slice, const PackedForward& forward, double share,
                                            const at::Tensor& d_extra_RH, LeafReport& report) {
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  std::optional<Error> error;  // the head cannot carry a Result; the first one stops all further calls
  const HeldColumns held = TRY(objective_->hold(slice.given()));
  std::vector<int64_t> offsets, ids, groups;
  const std::span<float> log_prob = slice.log_prob(), entropy = slice.entropy(), old_log_prob = slice.old_log_prob();
  const Layout rows = slice.table.layout();
  size_t row = 0;
  const auto on_chunk = [&](const HeadChunk& chunk) {
    if (error || report.skipped) return;
    if (const Result<> heard = check_tensor_ranks(*model_); !heard.ok()) {
      error = heard.error();
      return;
    }
    const auto begin = static_cast<size_t>(chunk.begin);
    const auto end = static_cast<size_t>(chunk.end);
    for (size_t t = begin; t < end; ++t) {
      log_prob[t] = static_cast<float>(chunk.log_prob[t - begin]);
      entropy[t] = static_cast<float>(chunk.entropy[t - begin]);
      if (slice.on_policy) old_log_prob[t] = log_prob[t];
    }
    // The pieces of rows in this chunk.
    offsets.assign(1, 0);
    ids.clear();
    groups.clear();
    while (rows.row_offsets[row + 1] <= chunk.begin && row + 1 < slice.rows.size()) ++row;
    for (size_t r = row; r < slice.rows.size() && rows.row_offsets[r] < chunk.end; ++r) {
      offsets.push_back(std::min(rows.row_offsets[r + 1], chunk.end) - chunk.begin);
      ids.push_back(rows.row_id[r]);
      groups.push_back(rows.group_index[r]);
    }
    const StepView input = slice.input(begin, end, {offsets, ids, groups});
    report.skipped = !all_finite(input.get<column::LogProb>(), input.get<column::ResponseMask>());
    if (report.skipped) return;
    auto sums = objective_->evaluate(input, slice.grad(begin, end), nullptr);
    if (!sums.ok()) {
      error = std::move(sums).error();
      return;
    }
    for (size_t t = begin; t < end; ++t) {
      chunk.grad_log_prob[t - begin] = share * static_cast<double>(slice.grad_log_prob[t]);
      if (!chunk.grad_entropy.empty())
        chunk.grad_entropy[t - begin] = share * static_cast<double>(slice.grad_entropy[t]);
    }
  };
  const EntropyUse use = objective_->uses_entropy_gradient() ? EntropyUse::kGradient : EntropyUse::kValue;
  head_one_pass(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature, use, on_chunk, d_hidden_RH,
                model_->head_grad(), options_.head);
  if (error) return std::move(*error);
  if (report.skipped) return BackwardPass();
  // Sums and metrics once more over whole rows, so that they do not depend on where the chunks were cut.
  report.sums.add(TRY(objective_->evaluate(slice.input(), slice.grad(), &report.metrics)));
  if (d_extra_RH.defined()) d_hidden_RH.add_(d_extra_RH);
  report.has_gradient = slice.has_gradient() || d_extra_RH.defined();
  return report.has_gradient ? forward.backward_pass(d_hidden_RH) : BackwardPass();
}

BackwardPass ActorLearner::inject(const PackedForward& forward, const KeptTokens& kept, double share,
                                  std::span<float> grad_log_prob, std::span<float> grad_entropy,
                                  std::span<const TokenNorm> norms, const at::Tensor& d_extra_RH) {
  const at::Tensor d_hidden_RH = at::empty_like(forward.hidden_RH);
  const auto dtype = forward.hidden_RH.scalar_type();
  const at::Tensor by_log_prob = forward.targets.own(tensor_of(grad_log_prob, share, dtype));
  const at::Tensor by_entropy =
      forward.targets.own(objective_->uses_entropy_gradient() ? tensor_of(grad_entropy, share, dtype) : at::Tensor());
  if (kept.empty()) {
    head_backward(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature, by_log_prob, by_entropy,
                  d_hidden_RH, model_->head_grad(), norms, options_.head);
  } else {
    kept_backward(forward.hidden_RH, model_->head(), forward.targets_R, options_.temperature, forward.targets.own(kept),
                  by_log_prob, by_entropy, d_hidden_RH, model_->head_grad(),
                  /*is_frozen=*/!model_->head_weight().requires_grad());
  }
  if (d_extra_RH.defined()) d_hidden_RH.add_(d_extra_RH);
  return forward.backward_pass(d_hidden_RH);
}

Result<BackwardPass> ActorLearner::two_pass(UpdateSlice& slice, const PackedForward& forward, double share,
                                            const at::Tensor& d_extra_RH, LeafReport& report) {
  const LogProbs probs = head_probs(*model_, forward, slice.table.kept(), true);
  TRY(check_tensor_ranks(*model_));
  copy_to_floats(forward.targets.whole(probs.log_prob_R), slice.log_prob());
  copy_to_floats(forward.targets.whole(probs.entropy_R), slice.entropy());
  if (slice.on_policy) std::ranges::copy(slice.log_prob(), slice.old_log_prob().begin());
  report.skipped = !all_finite(slice.log_prob(), slice.mask());
  if (report.skipped) return BackwardPass();
  report.sums.add(TRY(objective_->evaluate(slice.input(), slice.grad(), &report.metrics)));
  report.has_gradient = slice.has_gradient() || d_extra_RH.defined();
  if (!report.has_gradient) return BackwardPass();
  return inject(forward, slice.table.kept(), share, slice.grad_log_prob, slice.grad_entropy, probs.norms_R, d_extra_RH);
}

// Log-probs and entropies of the whole update, without gradient; `norms` of this rank's rows, and only where they had to
// be computed.
Result<> ActorLearner::measure_whole_update(const PolicyUpdate& update, UpdateSlice& whole,
                                            std::vector<TokenNorm>& norms) const {
  if (update.place.old_is_current && !has_dropout() && !whole.on_policy && whole.table.has<column::OldEntropy>()) {
    std::ranges::copy(whole.old_log_prob(), whole.log_prob().begin());
    std::ranges::copy(whole.table.get<column::OldEntropy>(), whole.entropy().begin());
    return {};
  }
  const std::span<float> whole_log_prob = whole.log_prob(), whole_entropy = whole.entropy();
  c10::NoGradGuard no_grad;
  norms.resize(whole.num_tokens());
  std::vector<std::string> parts(update.num_micro_batches());  // the supervised ones stay empty
  const auto measure = [&](size_t i) -> Result<> {
    const std::vector<int64_t>& micro = update.micro_batches[i];
    const PackedForward out = TRY(forward_rows(*model_, update.table, micro, update.pass));
    const KeptTokens kept = update.table.kept_of(micro);
    const LogProbs probs = head_probs(*model_, out, kept, true);
    TRY(check_tensor_ranks(*model_));
    std::vector<float> numbers(2 * static_cast<size_t>(out.targets.num_targets()));
    const std::span<float> log_prob = std::span(numbers).first(numbers.size() / 2);
    copy_to_floats(out.targets.whole(probs.log_prob_R), log_prob);
    copy_to_floats(out.targets.whole(probs.entropy_R), std::span(numbers).subspan(log_prob.size()));
    if (kept.empty()) {
      const std::vector<TokenNorm> of_micro = out.targets.in_place(probs.norms_R);
      update.for_tokens(micro, whole, [&](size_t from, size_t to) { norms[to] = of_micro[from]; });
    }
    parts[i] = float_bytes(numbers);
    return {};
  };
  for (const std::optional<size_t>& micro : update.share.rounds()) {
    if (micro && !update.is_supervised(*micro)) TRY(measure(*micro));
    TRY(finish_forward({model_}));
  }
  TRY(update.share.exchange(parts, "log-probs of the update"));
  for (size_t i = 0; i < update.micro_batches.size(); ++i) {
    const std::vector<float> numbers = floats_of_bytes(parts[i]);
    update.for_tokens(update.micro_batches[i], whole, [&](size_t from, size_t to) {
      whole_log_prob[to] = numbers[from];
      whole_entropy[to] = numbers[from + numbers.size() / 2];
    });
  }
  return {};
}

// What else goes back through the hidden states. Losses of routers send their own gradients on the way, even if that is 0.
Result<VocabularyTerms> ActorLearner::extra_terms(PolicyUpdate& update, const UpdateSlice& part,
                                                  const PackedForward& forward, LeafReport& leaf) {
  VocabularyTerms terms = TRY(vocabulary_terms(*objective_, *model_, part, forward, options_, update.policy_share()));
  update.routers.note(forward, leaf);
  if (update.routers.is_on() && !terms.d_hidden_RH.defined()) terms.d_hidden_RH = at::zeros_like(forward.hidden_RH);
  return terms;
}

// One micro-batch with its part of the gradient of the whole update's objective.
Result<LeafReport> ActorLearner::compute_injected(PolicyUpdate& update, const std::vector<int64_t>& micro,
                                                  const UpdateSlice& whole, std::span<const TokenNorm> norms,
                                                  BackwardPass& backward) {
  LeafReport leaf;
  std::vector<float> grad_log_prob, grad_entropy;
  std::vector<TokenNorm> micro_norms;
  update.for_tokens(micro, whole, [&](size_t, size_t from) {
    grad_log_prob.push_back(whole.grad_log_prob[from]);
    grad_entropy.push_back(whole.grad_entropy[from]);
    if (!norms.empty()) micro_norms.push_back(norms[from]);
  });
  const bool has_gradient = any_nonzero(grad_log_prob) || any_nonzero(grad_entropy);
  if (!has_gradient && !has_vocabulary_terms(*objective_, options_) && !update.routers.is_on()) return leaf;
  const PackedForward out = TRY(forward_rows(*model_, update.table, micro, update.pass));
  const UpdateSlice part = TRY(slice(update, micro));
  const VocabularyTerms terms = TRY(extra_terms(update, part, out, leaf));
  leaf.sums = terms.sums;
  TRY(leaf.metrics.merge(terms.metrics));
  leaf.has_gradient = has_gradient || terms.d_hidden_RH.defined();
  if (!micro_norms.empty()) micro_norms = out.targets.own(std::move(micro_norms));
  if (leaf.has_gradient)
    backward = inject(out, part.table.kept(), update.policy_share(), grad_log_prob, grad_entropy, micro_norms,
                      terms.d_hidden_RH);
  return leaf;
}

// The objective sees the whole update, on every rank. The micro-batches then run backward.
Result<> ActorLearner::backward_whole_update(PolicyUpdate& update, UpdateReport& report,
                                             std::vector<LeafReport>& leaves, GradientSum& gradient) {
  UpdateSlice whole = TRY(slice(update, update.rows));
  std::vector<TokenNorm> norms;
  TRY(measure_whole_update(update, whole, norms));
  if (whole.on_policy) std::ranges::copy(whole.log_prob(), whole.old_log_prob().begin());
  report.skipped = !all_finite(whole.log_prob(), whole.mask());
  if (!report.skipped) report.sums.add(TRY(objective_->evaluate(whole.input(), whole.grad(), &report.metrics)));
  if (const std::vector<float> kept = update.kept_of(whole); !kept.empty())
    update.keep({update.rows.begin(), update.rows.end()}, kept);
  if (report.skipped) return {};
  for (const std::optional<size_t>& micro : update.share.rounds()) {
    BackwardPass backward;
    if (micro) {
      leaves[*micro] = TRY(update.is_supervised(*micro)
                               ? update.compute_supervised(*model_, reference_of_rounds(), *micro, backward)
                               : compute_injected(update, update.micro_batches[*micro], whole, norms, backward));
      show_micro_batch("update", *micro, leaves.size());
    }
    TRY(finish_forward({model_, reference_of_rounds()}));
    TRY(gradient.end_round(micro, backward));
  }
  return {};
}

// One micro-batch whose objective needs no other.
Result<LeafReport> ActorLearner::compute_rows(PolicyUpdate& update, const std::vector<int64_t>& micro,
                                              BackwardPass& backward) {
  LeafReport leaf;
  UpdateSlice part = TRY(slice(update, micro));
  const PackedForward out = TRY(forward_rows(*model_, update.table, micro, update.pass));
  if (out.targets.num_targets() == 0) {  // rows without tokens still count in metrics per row
    leaf.sums.add(TRY(objective_->evaluate(part.input(), part.grad(), &leaf.metrics)));
    return leaf;
  }
  const VocabularyTerms terms = TRY(extra_terms(update, part, out, leaf));
  if (objective_->coupling() == Coupling::kToken && part.table.kept().empty() && out.targets.is_whole())
    backward = TRY(one_pass(part, out, update.policy_share(), terms.d_hidden_RH, leaf));
  else
    backward = TRY(two_pass(part, out, update.policy_share(), terms.d_hidden_RH, leaf));
  if (leaf.skipped) return leaf;
  leaf.sums.add(terms.sums);
  TRY(leaf.metrics.merge(terms.metrics));
  leaf.kept = update.kept_of(part);
  return leaf;
}

Result<> ActorLearner::accumulate(PolicyUpdate& update, UpdateReport& report) {
  GradientSum gradient(*model_, *optimizer_, update.share, options_.ranks);
  std::vector<LeafReport> leaves(update.num_micro_batches());
  if (update.place.reads_sampled) TRY(sample_missing(update.table, update.micro_batches, update.share, options_));
  TRY(update.routers.count(update.micro_batches, update.share, update.pass));
  // If a micro-batch is the whole update, it sees the whole update.
  if (objective_->coupling() > Coupling::kRow && update.micro_batches.size() > 1) {
    TRY(backward_whole_update(update, report, leaves, gradient));
    if (report.skipped) return {};
  } else {
    bool is_skipped = false;  // the other ranks may still need this one
    for (const std::optional<size_t>& micro : update.share.rounds()) {
      BackwardPass backward;
      const bool works = micro && !is_skipped;
      if (works) {
        leaves[*micro] = TRY(update.is_supervised(*micro)
                                 ? update.compute_supervised(*model_, reference_of_rounds(), *micro, backward)
                                 : compute_rows(update, update.micro_batches[*micro], backward));
        show_micro_batch("update", *micro, leaves.size());
        is_skipped = leaves[*micro].skipped;
      }
      TRY(finish_forward({model_, reference_of_rounds()}));
      TRY(gradient.end_round(works && !is_skipped ? micro : std::nullopt, backward));
    }
  }
  TRY(exchange_leaves(update.share, leaves));
  double supervised_loss = 0.0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    TRY(report.metrics.merge(leaves[i].metrics));
    if (update.is_supervised(i)) {
      supervised_loss += leaves[i].sums.loss;
      continue;
    }
    report.sums.add(leaves[i].sums);
    report.skipped = leaves[i].skipped;
    if (report.skipped) return {};
    if (!leaves[i].kept.empty()) update.keep(update.micro_batches[i], leaves[i].kept);
  }
  update.add_supervised_loss(supervised_loss, report);
  update.routers.report(leaves, report.sums.loss, report.metrics);
  return gradient.finish(leaves);
}

Result<UpdateReport> ActorLearner::update(const StepTable& table, std::span<const int64_t> rows,
                                          const UpdatePlace& place) {
  const LibtorchAlone alone(has_small_weights(*model_, options_.pass));
  UpdateReport report;
  report.lr = place.lr;
  model_->zero_grad();
  PolicyUpdate update(*model_, table, rows, place, options_, *optimizer_);
  TRY(accumulate(update, report));
  if (report.skipped) {
    report.grad_norm = report.sums.loss = std::numeric_limits<double>::quiet_NaN();
    if (place.open_step != nullptr) *place.open_step = {report.grad_norm, false};
    return report;
  }
  const FiniteStep step = TRY(step_if_finite(*model_, *optimizer_, report.sums.loss, place.lr, options_.grad_clip));
  if (place.open_step == nullptr)
    report_step(step, report);
  else
    *place.open_step = step;
  return report;
}

}  // namespace mortise
