// What the import tests share: a text through import_config_text, and what the result loads to.
#pragma once

#include "config_test_support.h"
#include "import/import.h"

namespace mortise::test {

inline Result<ImportedConfig> import_text(std::string_view framework, std::string_view text,
                                          std::string_view file = "peer.yaml",
                                          std::optional<int64_t> num_processes = {}) {
  return import_config_text(default_env(), {std::string(framework), std::string(file), num_processes}, text);
}

// With servers that the call names.
inline Result<ImportedConfig> import_for(std::vector<std::string> servers, std::string_view framework,
                                         std::string_view text, std::string_view file = "peer.yaml") {
  ImportRequest request{std::string(framework), std::string(file), 1};
  request.servers = std::move(servers);
  return import_config_text(default_env(), request, text);
}

// The error of an import that must fail; "ok" where it does not.
inline std::string import_error(std::string_view framework, std::string_view text,
                                std::string_view file = "peer.yaml") {
  return error_of(import_text(framework, text, file));
}

// The settings that an import must give.
inline RunConfig imported(std::string_view framework, std::string_view text, std::string_view file = "peer.yaml",
                          std::optional<int64_t> num_processes = {}) {
  const Result<ImportedConfig> result = import_text(framework, text, file, num_processes);
  if (result) return config_of(result->toml);
  ADD_FAILURE() << result.error().to_string();
  return {};
}

inline std::string imported_toml(std::string_view framework, std::string_view text, std::string_view file = "peer.yaml",
                                 std::optional<int64_t> num_processes = {}) {
  const Result<ImportedConfig> result = import_text(framework, text, file, num_processes);
  return result ? result->toml : result.error().to_string();
}

}  // namespace mortise::test
