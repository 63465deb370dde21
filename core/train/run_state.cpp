#include "train/run_state.h"

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

Result<> RunCounters::load_state(StateReader& reader) {
  const std::string saved_kind = TRY(reader.get_bytes("kind"));
  if (saved_kind != kind) {
    return Error{ErrorKind::kConfig,
                 "the checkpoint is of `mortise " + saved_kind + "`, this is `mortise " + kind + "`", "",
                 "choose another trainer.default_local_dir; to go on from its weights, set model.path to its "
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

Result<> PluginStates::save_state(StateWriter& writer) const {
  for (const StateKeeper& keeper : keepers_) {
    std::optional<std::string> bytes = TRY(keeper.save());
    if (bytes) writer.put_bytes(keeper.name, std::move(*bytes));
  }
  return {};
}

Result<> PluginStates::load_state(StateReader& reader) {
  for (const StateKeeper& keeper : keepers_) {
    if (!reader.has(keeper.name)) continue;
    const std::string bytes = TRY(reader.get_bytes(keeper.name));
    TRY(keeper.load(bytes));
  }
  return {};
}

}  // namespace mortise
