// Draws bars and the sparkline. See live_view.h.
#include "foundation/metrics/live_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr size_t kNameWidth = 10, kCountWidth = 25, kMostBar = 40;
constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 8> kAsciiBlocks = {"_", ".", "-", "~", "=", "*", "%", "#"};

std::string repeat(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string bar(const LiveStage& stage, size_t width, const LiveLook& look) {
  const double share =
      stage.total <= 0 ? 0.0 : std::clamp(static_cast<double>(stage.done) / static_cast<double>(stage.total), 0.0, 1.0);
  const auto filled = static_cast<size_t>(share * static_cast<double>(width));
  const std::string begin = repeat(look.has_unicode ? "█" : "#", filled);
  const std::string rest = repeat(look.has_unicode ? "░" : ".", width - filled);
  if (!look.has_color) return begin + rest;
  return fmt::format("\x1b[32m{}\x1b[2m{}\x1b[0m", begin, rest);
}

std::string count_text(const LiveStage& stage) {
  std::string out = stage.total > 0 ? fmt::format("{}/{} {}", stage.done, stage.total, stage.unit)
                                    : fmt::format("{} {}", stage.done, stage.unit);
  if (stage.pending > 0) out += fmt::format(", {} pending", stage.pending);
  return one_line(out);
}

std::string line_of(std::string_view name, std::string_view middle, size_t middle_width, std::string_view graph) {
  return fmt::format("{:<{}}  {:<{}}  {}", shorten(one_line(name), kNameWidth), kNameWidth, middle, middle_width,
                     graph);
}

Result<LiveStage> read_stage(const Json& json, const std::string& where) {
  LiveStage stage;
  stage.name = TRY(json_string(json, "name", where));
  stage.done = TRY(json_int(json, "done", where));
  stage.total = TRY(json_int(json, "total", where));
  stage.unit = TRY(json_string(json, "unit", where));
  stage.pending = TRY(json_int(json, "pending", where));
  return stage;
}

}  // namespace

std::string sparkline(std::span<const double> values, size_t width, bool has_unicode) {
  values = values.last(std::min(width, values.size()));
  double low = INFINITY, high = -INFINITY;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const auto& blocks = has_unicode ? kBlocks : kAsciiBlocks;
  std::string out;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      out += ' ';
      continue;
    }
    const double place = high > low ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0.0;  // halves: no overflow
    out += blocks[std::min<size_t>(7, static_cast<size_t>(place * 8.0))];
  }
  return out;
}

std::vector<std::string> live_lines(const LiveState& state, const LiveLook& look) {
  size_t middle = kCountWidth;
  std::vector<std::string> counts;
  for (const LiveStage& stage : state.stages) middle = std::max(middle, counts.emplace_back(count_text(stage)).size());
  const size_t before = kNameWidth + middle + 4;
  const size_t width = look.columns > before ? std::min(kMostBar, look.columns - before) : 0;
  std::vector<std::string> lines;
  if (state.rewards.size() >= 2) {
    const std::string range = fmt::format("{:.3g} to {:.3g}, {}", state.rewards.front(), state.rewards.back(),
                                          counted(static_cast<int64_t>(state.rewards.size()), "step"));
    lines.push_back(line_of("reward", range, middle, sparkline(state.rewards, width, look.has_unicode)));
  }
  for (size_t i = 0; i < state.stages.size(); ++i)
    lines.push_back(line_of(state.stages[i].name, counts[i], middle, bar(state.stages[i], width, look)));
  return lines;
}

Json live_json(const LiveState& state) {
  Json stages = Json::array(), rewards = Json::array();
  for (const LiveStage& stage : state.stages)
    stages.push_back({{"name", stage.name},
                      {"done", stage.done},
                      {"total", stage.total},
                      {"unit", stage.unit},
                      {"pending", stage.pending}});
  for (const double reward : state.rewards) rewards.push_back(std::isfinite(reward) ? Json(reward) : Json());
  return {{"state", state.state},         {"step", state.step},         {"total_steps", state.total_steps},
          {"time_ns", state.time_ns},     {"headline", state.headline}, {"stages", std::move(stages)},
          {"rewards", std::move(rewards)}};
}

Result<LiveState> read_live_json(const Json& json, const std::string& where) {
  LiveState state;
  state.state = TRY(json_string(json, "state", where));
  state.step = TRY(json_int(json, "step", where));
  state.total_steps = TRY(json_int(json, "total_steps", where));
  state.time_ns = TRY(json_int(json, "time_ns", where));
  state.headline = TRY(json_string(json, "headline", where));
  const Json *stages = json_find(json, "stages"), *rewards = json_find(json, "rewards");
  if (stages == nullptr || !stages->is_array() || rewards == nullptr || !rewards->is_array())
    return Error{ErrorKind::kData, "this is not the state of a run", where, "name the folder of a run"};
  for (const Json& stage : *stages) state.stages.push_back(TRY(read_stage(stage, where)));
  for (const Json& reward : *rewards) state.rewards.push_back(reward.is_number() ? reward.get<double>() : NAN);
  return state;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = to_lower_ascii(value);
    return lower.find("utf-8") != lower.npos || lower.find("utf8") != lower.npos;
  }
  return false;
}

}  // namespace mortise
