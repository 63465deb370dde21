// See gradient_memory.h.
#include "train/run/gradient_memory.h"

#include <algorithm>
#include <bit>

#include "config/batch_plan.h"
#include "learn/optim/unit_size.h"
#include "learn/update/owner_sums.h"
#include "learn/update/owner_trees.h"
#include "train/run/rank_estimate.h"

namespace mortise {

double gradient_in_buckets(const TrainedSize& trained, double gradient, double end, double activations, double element,
                           const Owners& owners) {
  const auto unit =
      static_cast<double>(unit_size(owners.cut, static_cast<int64_t>(owners.count), static_cast<int64_t>(element)));
  const double bucket = std::max(unit, trained.largest_of_layers * element), rest = std::max(1.0, gradient - end);
  const auto messages = static_cast<double>(2 * kOwnerRoundBytes * static_cast<int64_t>(OwnerSums::kMostRounds));
  if (!owners.in_pass) {  // next to what earlier passes gave
    const double own = owners.each_pass ? gradient / owners.count : 0.0;
    return gradient + std::max(0.0, own + std::min(messages, 2.0 * gradient) - activations);
  }
  const double complete = static_cast<double>(OwnerSums::kMostBuckets + 1) * bucket;
  const double buckets = std::min(rest, owners.each_pass ? complete : bucket);
  const double more = (owners.each_pass ? buckets : 0.0) + std::min(messages, 2.0 * buckets);
  return (owners.each_pass ? gradient / owners.count + end : gradient) +
         std::max(0.0, more - activations * buckets / rest);
}

double gradient_in_tree(double gradient, int64_t passes, double num_owners, double activations) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(1, passes));
  const double held = std::bit_width(count);  // with that of the pass
  const double left = std::popcount(count);
  const auto messages = static_cast<double>(2 * Shards::kRoundBytes);
  const double summed = gradient / num_owners + std::min(messages, 2.0 * gradient);
  return std::max(held * gradient, left * gradient + summed - activations);
}

Passes passes_of_critic(const RunConfig& config, const CriticBytes& critic, int num_ranks) {
  const int64_t all = critic_passes(config, plan_batches(config), critic.trained.is_on_device);
  // At least one: a run without a critic does not check its keys.
  const int64_t num_groups = std::max<int64_t>(1, num_ranks / config.critic.ulysses_sequence_parallel_size);
  return {all, (all + num_groups - 1) / num_groups};
}

FixedOrder fixed_order(const RunConfig& config, int64_t group_size, const Passes& passes, int num_ranks) {
  if (!config.trainer.deterministic) return {};
  if (!owners_add_leaves(true, config.ranks.zero_stage >= 2, group_size)) return {.keeps_leaves = true};
  int most = 0;
  for (int64_t done = num_ranks; done < passes.all + num_ranks; done += num_ranks)
    most = std::max(most, std::popcount(static_cast<uint64_t>(std::min(done, passes.all))));
  return {.subtrees = static_cast<double>(most) / num_ranks};
}

double end_of_gradient(const TrainedSize& trained, bool has_lora) {
  return has_lora ? trained.units.ends : trained.units.largest_end;
}

double gradient_with_spread_weights(const UnitBytes& units, double gradient, bool has_lora, bool by_windows,
                                    double num_owners, double activations) {
  if (has_lora) {
    const auto messages = static_cast<double>(2 * Shards::kRoundBytes);
    return gradient + std::max(0.0, gradient / num_owners + std::min(messages, 2.0 * gradient) - activations);
  }
  return (units.all + units.whole) / num_owners + units.whole + units.layer + (by_windows ? 0.0 : units.ends);
}

}  // namespace mortise
