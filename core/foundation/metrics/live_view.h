// LiveState: what a run does at this moment, and how it is shown: a line with the rewards of the last steps, and a bar
// per stage of the step. A run shows it on its own terminal (live.h), and `mortise top` shows it on another one from
// RUN/live.json. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

struct LiveStage {
  std::string name;  // "sampling"
  int64_t done = 0, total = 0;
  std::string unit;     // "rows"
  int64_t pending = 0;  // begun and not done; 0 is not shown
};

struct LiveState {
  std::string state = "running";  // or how the run ended: "done", "stopped", "failed"
  int64_t step = 0;               // that is worked on; 0: none yet
  int64_t total_steps = 0;        // 0: unknown
  std::string headline;           // progress_text (sinks.h) of the last step that is done
  std::vector<LiveStage> stages;  // this step's stages: sampling, rewards, then the others as they began
  std::vector<double> rewards;    // rewards of the last complete steps, at most kMostRewards
  int64_t time_ns = 0;            // when this was so, since the Unix epoch

  static constexpr size_t kMostRewards = 40;
};

struct LiveLook {
  size_t columns = 79;
  bool has_unicode = true;
  bool has_color = false;
};

// "▁▃▆█": each value between the lowest and the highest of `values`; of more than `width`, the last ones. Values that
// are not finite are gaps.
[[nodiscard]] std::string sparkline(std::span<const double> values, size_t width, bool has_unicode);

// One line for the rewards if there are two or more, and one per stage. In each, two spaces part the items, and the
// graph is last: a terminal that becomes too narrow leaves it out first.
[[nodiscard]] std::vector<std::string> live_lines(const LiveState& state, const LiveLook& look);

[[nodiscard]] Json live_json(const LiveState& state);
// An Error for a value that is no such state, as after a write that was not whole.
Result<LiveState> read_live_json(const Json& json, const std::string& where);

// Does the user's locale write UTF-8? By LC_ALL, LC_CTYPE and LANG, the first that is set.
[[nodiscard]] bool locale_is_utf8();

}  // namespace mortise
