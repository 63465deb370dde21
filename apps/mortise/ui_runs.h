// UiRuns: the runs and model folders behind the pages of mortise serve --ui (serve/ui/ui_service.h says who calls what).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "model/device/compute_device.h"
#include "report/run_follower.h"
#include "run_scorer.h"
#include "serve/ui/ui_service.h"

namespace mortise {

class UiRuns final : public UiPort {
 public:
  // A folder with metrics.jsonl is a run's, one with config.json or an adapter is a model's. An Error for any other.
  // The playground samples on `device`, whatever the runs used.
  static Result<std::unique_ptr<UiRuns>> create(Env& env, const std::vector<std::string>& folders,
                                                std::vector<std::string> overrides, const ComputeDevice& device);

  Result<std::string> report_page() override;
  Result<std::string> playground_page() override;
  Result<std::string> rows(int64_t run, int64_t step) override;
  Result<Json> models() override;
  Result<Json> data_row(const Json& body) override;
  Result<Json> score(const Json& body) override;
  EventHub::Source open_events(const std::string& place) override;
  std::string version_of(const std::string& name) override;
  Result<std::unique_ptr<LoadedModel>> load_model(const std::string& name) override;

 private:
  // A model that the playground offers.
  struct Choice {
    std::string id, title;
    Path folder;
    int run = -1;  // whose settings it is loaded with; -1: the defaults
  };
  struct ScorerOfRun {
    std::string version;  // changes with the settings: another run may take the folder
    std::unique_ptr<RunScorer> scorer;
  };
  UiRuns(Env& env, std::vector<std::string> overrides, const ComputeDevice& device)
      : env_(&env), overrides_(std::move(overrides)), device_(device) {}
  [[nodiscard]] std::vector<Choice> choices() const;
  void add_checkpoints(size_t run, std::vector<Choice>& out) const;
  // The settings of the run (-1: the defaults), with this folder as the model.
  [[nodiscard]] Result<LoadedConfig> settings(int run, const Path& model) const;
  Result<RunScorer*> scorer(const Json& body);

  Env* env_;
  std::vector<std::string> overrides_;
  ComputeDevice device_;
  std::vector<Path> runs_, models_;
  FindingsCache findings_;                 // for the thread of events
  std::map<size_t, ScorerOfRun> scorers_;  // for the thread of scores
};

}  // namespace mortise
