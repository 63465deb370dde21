// What one reward function gave for the rows of this process, for the other ranks, and the parts of all ranks as one
// output. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/host/kinds/reward.h"

namespace mortise {

// `rows` are those that the process scored, ascending; the output has a place for every row of the batch.
struct ScorePart {
  std::vector<int64_t> rows;
  std::optional<Error> error;  // the whole call failed: there is no output
  RewardOutput output;
};

std::string encode_part(const ScorePart& part);
Result<ScorePart> decode_part(std::string_view bytes, size_t num_rows);

// One output for all rows, with metrics in the order of rows, so that nothing depends on who scored which. A call that
// failed fails the rows of its part, and is the Error of the whole if it is the only one. An Error of kind kSignal is
// always that.
Result<RewardOutput> join_parts(std::vector<ScorePart> parts, size_t num_rows);

}  // namespace mortise
