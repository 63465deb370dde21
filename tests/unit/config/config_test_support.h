// What the tests of this folder share: load a text, expect its error.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "support/temp_dir.h"

namespace mortise::test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

inline Result<LoadedConfig> load(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return load_config_text(default_env(), text, "run.toml", overrides);
}

// The config of a text that must load.
inline RunConfig config_of(std::string_view text, const std::vector<std::string>& overrides = {}) {
  Result<LoadedConfig> loaded = load(text, overrides);
  if (loaded) return std::move(loaded->config);
  ADD_FAILURE() << loaded.error().to_string();
  return {};
}

inline std::string load_error(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return error_of(load(text, overrides));
}

}  // namespace mortise::test
