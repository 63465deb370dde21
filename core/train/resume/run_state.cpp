// Saves and loads the counters, the pending validation, and the state of plugins.
#include "train/resume/run_state.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/log.h"

namespace mortise {

Result<> RunCounters::save_state(StateWriter& writer) const {
  writer.put_bytes("kind", kind);
  writer.put_int("step", step);
  writer.put_int("num_updates", num_updates);
  writer.put_int("num_skipped", num_skipped);
  writer.put_int("weight_version", weight_version);
  writer.put_int("num_tokens", num_tokens);
  writer.put_double("train_seconds", train_seconds);
  return {};
}

Result<> RunCounters::load(StateReader& reader, std::string_view saved_kind) {
  const std::string found = TRY(reader.get_bytes("kind"));
  if (found != saved_kind) {
    return Error{ErrorKind::kConfig,
                 fmt::format("the checkpoint is of `mortise {}`, this is `mortise {}`", found, saved_kind), "",
                 "choose another trainer.default_local_dir; to continue from its weights, set model.path to its "
                 "huggingface folder"};
  }
  step = TRY(reader.get_int("step"));
  num_updates = TRY(reader.get_int("num_updates"));
  num_skipped = TRY(reader.get_int("num_skipped"));
  weight_version = TRY(reader.get_int("weight_version"));
  num_tokens = TRY(reader.get_int("num_tokens"));
  train_seconds = TRY(reader.get_double("train_seconds"));
  return {};
}

Result<> OwedValidation::save_state(StateWriter& writer) const {
  writer.put_bool("is_owed", metrics.has_value());
  if (metrics) metrics->save(writer, "metrics");
  return {};
}

Result<> OwedValidation::load_state(StateReader& reader) {
  metrics.reset();
  if (!TRY(reader.get_bool("is_owed"))) return {};
  return metrics.emplace().load(reader, "metrics");
}

Result<> PluginStates::save_state(StateWriter& writer) const {
  for (const StatefulPlugin& plugin : plugins_) {
    std::optional<std::string> bytes = TRY(plugin.save());
    if (bytes) writer.put_bytes(plugin.name, std::move(*bytes));
  }
  return {};
}

Result<> PluginStates::load_state(StateReader& reader) {
  TRY(load_own(reader));
  return check_others(reader);
}

Result<> PluginStates::load_own(StateReader& reader) {
  for (const StatefulPlugin& plugin : plugins_) {
    if (!reader.has(plugin.name)) {
      TRY(check_absent(plugin));
      continue;
    }
    const std::string bytes = TRY(reader.get_bytes(plugin.name));
    TRY(plugin.load(bytes));
  }
  return {};
}

Result<> PluginStates::check_absent(const StatefulPlugin& plugin) const {
  const std::optional<std::string> state = TRY(plugin.save());
  if (!state) return {};
  if (takes_changes) {
    log_warn(fmt::format("the state of the plugin {} starts empty: the checkpoint has none", plugin.name));
    return {};
  }
  return Error{ErrorKind::kData, "the checkpoint holds no state of the plugin " + plugin.name, "",
               "give --allow-change to let it start empty"};
}

Result<> PluginStates::check_others(StateReader& reader) const {
  for (const std::string& key : reader.unread_keys()) {
    if (!takes_changes) {
      return Error{ErrorKind::kData,
                   fmt::format("the checkpoint holds state of {}, a plugin that this run does not have", key), "",
                   "give --allow-change to continue without it"};
    }
    TRY(reader.get_bytes(key));
    log_warn(fmt::format("the run does not use the plugin {}, so its state in the checkpoint is dropped", key));
  }
  return {};
}

}  // namespace mortise
