// An environment by name, called in this process: what a row meets between its turns (mortise.environment/1).
//
// Each episode gets one answer for each call: an observation, or the reason why it failed. Threading: one call at a
// time per object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mortise/kinds/environment.h"
#include "plugin/host/instance.h"

namespace mortise {

// What begins an episode. Texts are JSON: a list of messages, and an object.
struct EpisodeStart {
  int64_t episode = 0;
  int64_t step = 0;
  uint64_t seed = 0;         // the same for all rows of a prompt
  int64_t sample_index = 0;  // the row's place among those
  bool is_validation = false;
  std::string messages{};
  std::string columns{};
};

// An assistant turn.
struct EpisodeAction {
  int64_t episode = 0;
  int64_t step = 0;
  int64_t turn = 0;           // from 0
  int32_t finish_reason = 0;  // MORTISE_FINISH_*
  bool is_last = false;       // no observation is taken after it
  std::string text{};
  std::string calls{};  // JSON list of tool calls
  std::vector<int64_t> ids{};
};

struct EpisodeAnswer {
  int64_t episode = 0;
  bool done = false;
  double reward = std::numeric_limits<double>::quiet_NaN();  // NaN: none
  std::string messages{};                                    // JSON list; "": none
  int64_t num_calls = 0;
  int64_t num_failed_calls = 0;
  std::string failure{};  // why the episode failed; then nothing else counts. "": it did not
};

class Environment {
 public:
  static Result<Environment> create(PluginRegistry& registry, std::string_view name,
                                    const nlohmann::ordered_json& params, const RunKey& key);
  // In a worker: the pack is in memory and the parameters are checked.
  static Result<Environment> create(const LoadedPlugin& plugin, InstanceIdentity identity, const RunKey& key);

  [[nodiscard]] PluginInstance& instance() { return instance_; }
  // Whether an episode lives in the instance that was reset for it.
  [[nodiscard]] bool keeps_episodes() const;

  // A JSON object: "tools" for prompts, "rewards"; "" if the plugin tells nothing.
  Result<std::string> description();
  // An answer for each of them, in order. An error of the whole call is the answer of all.
  std::vector<EpisodeAnswer> reset(std::span<const EpisodeStart> starts, const CallOptions& options);
  std::vector<EpisodeAnswer> act(std::span<const EpisodeAction> actions, const CallOptions& options);
  void close(std::span<const int64_t> episodes, int64_t step);

 private:
  static Result<Environment> checked(PluginInstance instance);
  explicit Environment(PluginInstance instance) : instance_(std::move(instance)) {}
  PluginInstance instance_;
};

}  // namespace mortise
