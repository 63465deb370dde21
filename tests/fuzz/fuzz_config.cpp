// The run configuration: what loads is shown as TOML that loads again and shows the same.
#include "config/check.h"
#include "config/load.h"
#include "config/show.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env;
  const std::string_view text = fuzz::as_text(data, size);
  env.add("base.toml", "[trainer]\ntotal_epochs = 2\n");
  const auto loaded = load_config_text(env, text, "input.toml", {});
  if (!loaded.ok()) {
    fuzz::require(!loaded.error().what.empty(), "an error says what");
    return;
  }
  const std::string shown = config_to_toml(loaded->config);
  const auto again = load_config_text(env, shown, "shown.toml", {});
  fuzz::require(again.ok(), "what is shown loads");
  fuzz::require(config_to_toml(again->config) == shown, "what is shown loads to the same");
  (void)check_config(*loaded, ConfigUse::kTrain);
}

}  // namespace mortise
