// LeafReport: what one micro-batch of an update gives next to its gradient. Every rank adds the reports up in the order
// of the plan, so the numbers of an update are the same on all ranks and for any number of ranks.
// For this folder, and for estimates of what ranks send.
#pragma once

#include <vector>

#include "foundation/metrics/registry.h"
#include "learn/objective/actor_objective.h"
#include "learn/update/rank_share.h"

namespace mortise {

struct LeafReport {
  ObjectiveSums sums;
  MetricSet metrics;
  bool skipped = false;        // a log-prob was not finite: it has no sums and no gradient
  bool has_gradient = false;   // it ran backward
  std::vector<float> kept;     // one per token, if the update keeps something of them: log-probs, then with a trace
                               // entropies and what was clipped
  std::vector<double> router;  // what the routers told (router_losses.h); empty: nothing
};

// `leaves` by micro-batch: those of this rank before the call, all of them after it. Once a rank has skipped one, its later
// ones are empty, because nobody needs them.
Result<> exchange_leaves(const RankShare& share, std::vector<LeafReport>& leaves);

}  // namespace mortise
