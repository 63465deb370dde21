// Where tests/host/packs/packs.cmake puts the packs of these tests, and registries over some of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "plugin/host/registry.h"
#include "support/temp_dir.h"

namespace mortise::test {

inline Path pack_dir(const std::string& folder) { return Path(MORTISE_BINARY_DIR) / "tests" / "packs" / folder; }
inline Path pack_path(const std::string& name) { return pack_dir(name) / (name + ".so"); }

// Sees these folders and nothing else of the machine.
inline RegistryOptions only(std::initializer_list<std::string> folders) {
  RegistryOptions options;
  options.use_environment = false;
  options.use_user_packs = false;
  options.builtin_dir = "/nonexistent/packs";
  for (const std::string& folder : folders) options.paths.push_back(pack_dir(folder));
  return options;
}

inline PluginRegistry open_registry(std::initializer_list<std::string> folders) {
  auto registry = PluginRegistry::open(only(folders));
  if (!registry.ok()) {
    ADD_FAILURE() << registry.error().to_string();
    std::abort();
  }
  return std::move(registry).value();
}

}  // namespace mortise::test
