// What a rank has of a gradient while an update adds those of its micro-batches, in bytes. Terms of the memory estimate,
// private to rank_memory.cpp. Pure functions.
#pragma once

#include <cstdint>

#include "config/load.h"
#include "learn/optim/shards.h"
#include "train/run/memory_estimate.h"

namespace mortise {

// Ranks that share the gradient of a model in buckets (ZeRO 1 and 2).
struct Owners {
  double count = 1;
  bool each_pass = false;  // buckets leave in every pass: a rank never has its whole gradient
  ShardCut cut = ShardCut::kBlocks;
  bool in_pass = true;  // they leave while backward runs, and not behind it
};

// The most that a rank has of a gradient of so many bytes (learn/update/owner_sums.h). `end`: of what is complete when
// backward begins or ends, of embedding and head. Backward frees activations meanwhile.
double gradient_in_buckets(const TrainedSize& trained, double gradient, double end, double activations, double element,
                           const Owners& owners);
// The same with stage 3, which is `num_owners` ranks that share all of a model, or an adapter that each has as a whole. A
// layer's gradient goes to its owners when it is complete, and so does that of a window (`by_windows`). Whole gradients of
// embedding and head, and that of an adapter, do when the pass has ended and freed its activations.
double gradient_with_spread_weights(const UnitBytes& units, double gradient, bool has_lora, bool by_windows,
                                    double num_owners, double activations);
// The same if it keeps those of subtrees (trainer.deterministic). In the end it has what is left next to the sum, or to its
// part of it, and messages. `passes`: its micro-batches in an update.
double gradient_in_tree(double gradient, int64_t passes, double num_owners, double activations);
// What is complete when backward begins or ends. The head of an adapter leaves with its embedding.
double end_of_gradient(const TrainedSize& trained, bool has_lora);

// The micro-batches of an update.
struct Passes {
  int64_t all = 0, of_rank = 0;
};
Passes passes_of_critic(const RunConfig& config, const CriticBytes& critic, int num_ranks);

// How ranks add a gradient in a fixed order (trainer.deterministic).
struct FixedOrder {
  bool keeps_leaves = false;  // each rank keeps whole gradients
  double subtrees = 0;        // else what it keeps of the subtrees that it owns between two passes, in whole gradients
};
FixedOrder fixed_order(const RunConfig& config, int64_t group_size, const Passes& passes, int num_ranks);

}  // namespace mortise
