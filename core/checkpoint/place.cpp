// See place.h.
#include "checkpoint/place.h"

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr std::string_view kFinished = "global_step_";
constexpr std::string_view kUnfinished = "unfinished_step_";
constexpr std::string_view kUpdate = "_update_";

}  // namespace

std::string checkpoint_name(const CheckpointPlace& place) {
  if (!place.update) return std::string(kFinished) + std::to_string(place.step);
  return std::string(kUnfinished) + std::to_string(place.step + 1) + std::string(kUpdate) +
         std::to_string(*place.update);
}

std::optional<CheckpointPlace> parse_checkpoint_name(std::string_view name) {
  CheckpointPlace place;
  std::optional<int64_t> step;
  if (name.starts_with(kFinished)) {
    step = parse_i64(name.substr(kFinished.size()));
    place.step = step.value_or(-1);
  } else if (name.starts_with(kUnfinished)) {
    const std::string_view rest = name.substr(kUnfinished.size());
    const size_t middle = rest.find(kUpdate);
    if (middle == std::string_view::npos) return std::nullopt;
    step = parse_i64(rest.substr(0, middle));
    place.step = step.value_or(0) - 1;
    place.update = parse_i64(rest.substr(middle + kUpdate.size()));
  }
  if (!step || place.step < 0 || place.update.value_or(0) < 0 || checkpoint_name(place) != name) return std::nullopt;
  return place;
}

}  // namespace mortise
