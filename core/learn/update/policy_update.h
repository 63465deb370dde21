// PolicyUpdate: what one call of ActorLearner::update works on: its rows, how they and the supervised ones are cut, and
// what is kept of their tokens. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "foundation/base/rng.h"
#include "learn/update/actor_learner.h"
#include "learn/update/rank_share.h"
#include "learn/update/router_losses.h"
#include "learn/update/sampled_share.h"
#include "learn/update/supervised_part.h"
#include "learn/update/update_slice.h"

namespace mortise {

struct PolicyUpdate {
  const StepTable& table;
  std::span<const int64_t> rows;
  UpdatePlace place;
  PassOptions pass;
  UpdateCounts counts;                         // counts over the whole update
  std::unordered_map<int64_t, size_t> places;  // row of the table -> row of the update
  MicroPlan micro_batches;                     // cut from `rows`
  std::optional<SupervisedPart> supervised;    // its micro-batches are numbered after those
  RankShare share;                             // this rank's micro-batches
  RouterLosses routers;                        // only the policy's rows have them; mu does not scale them

  PolicyUpdate(const Model& model, const StepTable& table_in, std::span<const int64_t> rows_in,
               const UpdatePlace& place_in, const LearnerOptions& options, const Optimizer& optimizer)
      : table(table_in),
        rows(rows_in),
        place(place_in),
        pass(options.update_pass(place_in.update_index)),
        counts(count_rows(table_in, rows_in)),
        micro_batches(plan_update(table_in, rows_in, options, place_in.reads_sampled)),
        supervised(make_supervised(place_in.mix, options)),
        share(make_share(options.ranks, optimizer)),
        routers(model, table_in, rows_in, options) {
    pass.router = routers.terms();
    pass.replays_experts = true;
    if (place.reads_sampled) pass.sampled = options.sampled;
    for (size_t i = 0; i < rows.size(); ++i) places[rows[i]] = i;
  }

  // What each micro-batch costs, the supervised ones too.
  [[nodiscard]] std::vector<int64_t> loads() const {
    std::vector<int64_t> loads = update_loads(table, micro_batches);
    if (supervised)
      std::ranges::transform(supervised->loads(), std::back_inserter(loads), [](int64_t n) { return 3 * n; });
    return loads;
  }

  // The share of the policy's rows in the loss.
  [[nodiscard]] double policy_share() const { return supervised ? 1.0 - place.mix.mu : 1.0; }
  [[nodiscard]] size_t num_micro_batches() const {
    return micro_batches.size() + (supervised ? supervised->num_micro_batches() : 0);
  }
  [[nodiscard]] bool is_supervised(size_t micro) const { return micro >= micro_batches.size(); }

  // One of the supervised micro-batches. LoRA dropout drops other features than in the policy's rows, and its routers
  // choose freely and have no losses.
  Result<LeafReport> compute_supervised(const Model& model, const Model* reference, size_t micro,
                                        BackwardPass& backward) const {
    PassOptions own = pass;
    own.router = nullptr;
    own.sampled = nullptr;
    own.replays_experts = false;
    if (own.dropout) own.dropout->seed = random_u64({own.dropout->seed, RandomPurpose::kSftMix});
    return supervised->compute(model, micro - micro_batches.size(), own, place.mix.mu, backward, nullptr, reference);
  }

  // Mixes the loss of the supervised rows into that of the policy's rows.
  void add_supervised_loss(double loss, UpdateReport& report) const {
    if (!supervised) return;
    report.sums.loss = policy_share() * report.sums.loss + place.mix.mu * loss;
    report.metrics.add_mean("actor/sft_mix_loss", loss, 1.0);
    report.metrics.add_mean("actor/sft_mix_tokens", static_cast<double>(supervised->num_tokens()), 1.0);
  }

  [[nodiscard]] bool has_trace() const { return !place.trace.log_prob.empty(); }

  // LeafReport::kept of the slice.
  [[nodiscard]] std::vector<float> kept_of(UpdateSlice& slice) const {
    if (place.log_prob_out.empty() && !has_trace()) return {};
    const std::span<const float> log_prob = slice.log_prob(), entropy = slice.entropy();
    std::vector<float> kept(log_prob.begin(), log_prob.end());
    if (!has_trace()) return kept;
    kept.insert(kept.end(), entropy.begin(), entropy.end());
    kept.insert(kept.end(), slice.clipped.begin(), slice.clipped.end());
    return kept;
  }

  // What is kept of the micro-batch's tokens, to their places in what the update gives.
  void keep(const std::vector<int64_t>& micro, std::span<const float> kept) const {
    size_t size = 0;
    for (const int64_t row : micro) size += static_cast<size_t>(table.row_tokens(row));
    const auto put = [&](std::span<const float> values, std::span<float> out) {
      if (out.empty()) return;
      for (const int64_t row : micro) {
        const auto count = static_cast<size_t>(table.row_tokens(row));
        std::ranges::copy(values.first(count), out.begin() + table.row_offsets()[static_cast<size_t>(row)]);
        values = values.subspan(count);
      }
    };
    put(kept.first(size), place.log_prob_out);
    if (!has_trace()) return;
    put(kept.first(size), place.trace.log_prob);
    put(kept.subspan(size, size), place.trace.entropy);
    put(kept.subspan(2 * size), place.trace.clipped);
  }

  // visit(token of the micro-batch, token of the whole update) in the order of the micro-batch.
  template <class Visit>
  void for_tokens(const std::vector<int64_t>& micro, const UpdateSlice& whole, const Visit& visit) const {
    size_t at_micro = 0;
    for (const int64_t row : micro) {
      const size_t r = places.at(row);
      const auto offsets = whole.table.row_offsets();
      for (int64_t t = offsets[r]; t < offsets[r + 1]; ++t) visit(at_micro++, static_cast<size_t>(t));
    }
  }

 private:
  [[nodiscard]] RankShare make_share(const RankOptions& ranks, const Optimizer& optimizer) const {
    if (place.reads_sampled) return share_by_home(table, micro_batches, loads(), ranks);
    return share_update(loads(), ranks, optimizer.shares_gradients());
  }
  static std::optional<SupervisedPart> make_supervised(const SupervisedMix& mix, const LearnerOptions& options) {
    if (mix.rows.table == nullptr) return std::nullopt;
    return SupervisedPart(mix.rows, options);
  }
};

}  // namespace mortise
