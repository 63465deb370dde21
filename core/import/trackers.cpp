// What a run tells trackers: trainer.logger, and the names of project and run that W&B and MLflow show.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

// Each is a setting of the framework; "" if it has none.
struct TrackerSettings {
  std::string_view targets, project, run;
  bool always_console = true;
};
constexpr TrackerSettings kVerlTrackers{"trainer.logger", "trainer.project_name", "trainer.experiment_name", false};
constexpr TrackerSettings kHfTrackers{"report_to", "", "run_name"};

constexpr std::string_view kTrackers[] = {"tensorboard", "wandb", "mlflow"};
constexpr std::string_view kNoTracker[] = {"console", "file", "none", "all"};

// Takes a name if trackers show it, and leaves it out if only the running script knows it.
void set_name(Translation& t, std::string_view key, std::string_view setting, bool is_shown) {
  if (setting.empty() || !t.is_given(setting) || t.is_null(setting)) return;
  if (!is_shown) return t.note(setting, fmt::format("{} is shown by wandb and mlflow, which are not in use", key));
  if (!t.is_known(setting)) return t.note(setting, fmt::format("not known before the script runs; set {}", key));
  t.set(key, t.text(setting), {setting});
}

}  // namespace

void prepare_trackers(Translation& t, bool is_verl) {
  const TrackerSettings& settings = is_verl ? kVerlTrackers : kHfTrackers;
  bool names_are_shown = false;
  if (t.is_given(settings.targets) && t.is_known(settings.targets)) {
    const std::vector<std::string> targets = t.texts(settings.targets);
    const auto has = [&targets](std::string_view name) { return std::ranges::count(targets, name) > 0; };
    Json logger = Json::array();
    if (settings.always_console || has("console")) logger.push_back("console");
    for (const std::string_view tracker : kTrackers) {
      if (has(tracker) || has("all")) logger.push_back(tracker);
    }
    std::vector<std::string> others;
    for (const std::string& target : targets) {
      if (std::ranges::count(kTrackers, target) + std::ranges::count(kNoTracker, target) == 0) others.push_back(target);
    }
    names_are_shown = has("wandb") || has("mlflow") || has("all");
    t.set("trainer.logger", logger, {settings.targets},
          "metrics.jsonl is always written" + (others.empty() ? "" : "; not here: " + join(others, ", ")));
  }
  set_name(t, "trainer.project_name", settings.project, names_are_shown);
  set_name(t, "trainer.experiment_name", settings.run, names_are_shown);
}

}  // namespace mortise
