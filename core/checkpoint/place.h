// Where in a run a checkpoint was saved, and the name of its folder:
//
//   global_step_7                 7 steps are done
//   unfinished_step_8_update_2    7 steps are done, and of the 8th the samples, the scores and 2 updates
// Thread rule: plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mortise {

struct CheckpointPlace {
  int64_t step = 0;               // steps done
  std::optional<int64_t> update;  // inside the step behind them: so many of its updates are done

  // In the order of the run: the end of a step comes before all places inside the next step.
  auto operator<=>(const CheckpointPlace&) const = default;
};

[[nodiscard]] std::string checkpoint_name(const CheckpointPlace& place);
// Nothing for any other name, "global_step_007" included, which would be a second name of one place.
[[nodiscard]] std::optional<CheckpointPlace> parse_checkpoint_name(std::string_view name);

}  // namespace mortise
