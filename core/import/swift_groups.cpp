// ms-swift's frozen parameters. It freezes by prefixes of names, by a pattern and by a share of the numbers, and then
// trains again what trainable_parameters names.
#include <fmt/core.h>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {

namespace {

// A pattern for names that begin with one of them, or in which `pattern` is found.
std::string pattern_of(const std::vector<std::string>& prefixes, const std::string& pattern) {
  std::vector<std::string> parts;
  for (const std::string& prefix : prefixes) {
    std::string part = "^";
    for (const char c : prefix) {
      if (std::string_view(".\\+*?[](){}^$|").find(c) != std::string_view::npos) part += '\\';
      part += c;
    }
    parts.push_back(std::move(part));
  }
  if (!pattern.empty()) parts.push_back(parts.empty() ? pattern : fmt::format("(?:{})", pattern));
  return join(parts, "|");
}

}  // namespace

// LoRA+ (arXiv 2402.12354): the B matrices of an adapter, and what has one dimension, have their own learning rate.
void set_lora_plus(Translation& t, bool trains_adapter) {
  constexpr std::string_view kRatio = "lorap_lr_ratio";
  if (t.is_null(kRatio) || !trains_adapter)
    return t.note_given({kRatio}, "no adapter is trained, or there is no ratio");
  const Json group = {{"match", "lora_B|lora_magnitude_vector|bias$|norm"}, {"lr_scale", t.number(kRatio)}};
  t.set("actor.optim.groups", Json{{"lora_plus", group}}, {kRatio});
}

void set_frozen(Translation& t, bool trains_all) {
  constexpr std::string_view kFreeze = "freeze_parameters", kFreezePattern = "freeze_parameters_regex",
                             kRatio = "freeze_parameters_ratio", kTrain = "trainable_parameters",
                             kTrainPattern = "trainable_parameters_regex";
  if (!trains_all) return t.note_given({kFreeze, kFreezePattern, kRatio, kTrain, kTrainPattern}, "only if it is full");
  const auto text = [&](std::string_view name) { return t.is_null(name) ? std::string() : t.text(name); };
  const double ratio = t.number(kRatio);
  if (ratio != 0.0 && ratio != 1.0) {
    t.problem(kRatio, fmt::format("{} = {} is not supported", kRatio, format_f64(ratio)),
              "name the frozen parameters in actor.optim.groups of the result");
    return;
  }
  const std::string frozen = ratio == 1.0 ? "." : pattern_of(t.texts(kFreeze), text(kFreezePattern));
  const std::string trained = pattern_of(t.texts(kTrain), text(kTrainPattern));
  if (frozen.empty())
    return t.note_given({kFreeze, kFreezePattern, kRatio, kTrain, kTrainPattern}, "nothing is frozen");
  Json groups = Json::object();
  if (!trained.empty()) groups["trained"] = {{"match", trained}};
  groups["frozen"] = {{"match", frozen}, {"freeze", true}};
  t.set("actor.optim.groups", groups, {kFreeze, kFreezePattern, kRatio, kTrain, kTrainPattern});
}

}  // namespace mortise
