// An environment as the engine uses it, in this process or in its own workers.
//
// Calls are queued by begin() and act(), and their answers come out of advance() in any order: one for each. An answer
// does not depend on the number of workers or on their speed (except time-outs). Threading: one thread at a time.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "plugin/host/kinds/environment.h"
#include "plugin/worker/placement.h"

namespace mortise {

class EpisodeRunner {
 public:
  using Sink = std::function<void(EpisodeAnswer)>;
  virtual ~EpisodeRunner() = default;
  [[nodiscard]] virtual const std::string& label() const = 0;
  // A JSON object: "tools" for prompts, "rewards"; "" if the plugin tells nothing.
  [[nodiscard]] virtual const std::string& description() const = 0;

  // An episode has one call in work at a time.
  virtual void begin(EpisodeStart start) = 0;
  virtual void act(EpisodeAction action) = 0;
  // Hands out calls, and gives the answers that are there to the sink. Waits up to `wait_ms` for the first of them. An
  // error ends the run: there are no workers.
  virtual Result<> advance(int wait_ms, const Sink& sink) = 0;
  // No call waits or is in work.
  [[nodiscard]] virtual bool is_idle() const = 0;
  // All episodes are over. Calls that wait or are in work are given up, without an answer.
  virtual Result<> close() = 0;
};

// The environment `name` of the registry. `timeout_ms` is for one call of one episode; 0: none, and in this process
// there is none.
Result<std::unique_ptr<EpisodeRunner>> make_episode_runner(PluginRegistry& registry, std::string_view name,
                                                           const nlohmann::ordered_json& params, const RunKey& key,
                                                           const IsolationOptions& options, int64_t timeout_ms);

}  // namespace mortise
