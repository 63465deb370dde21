// What one reward function gave for the rows of this process, for the other ranks, and the parts of all ranks as one
// output. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/batch/rank_block.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

// `rows` are those that the process scored; the output has a place for every row of the batch.
struct ScorePart {
  RankBlock rows;
  std::optional<Error> error;  // the whole call failed: there is no output
  RewardOutput output;
  MetricSet metrics;
};

std::string encode_part(const ScorePart& part);
Result<ScorePart> decode_part(std::string_view bytes, size_t num_rows);

// One output for all rows. A call that failed fails the rows of its part, and is the Error of the whole if it is the
// only one. An Error of kind kSignal is always that.
Result<RewardOutput> join_parts(std::vector<ScorePart> parts, size_t num_rows, MetricSet* metrics);

}  // namespace mortise
