// The places to search for packs, in order. Reads the environment, never the current directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/host/registry.h"

namespace mortise {

struct SearchPlace {
  std::filesystem::path path;
  PackOrigin origin = PackOrigin::kConfig;
  bool is_file = false;  // a pack named directly
  std::string refused;   // why it is not looked into; empty: it is
  std::string where{};   // who named it, where that is known
};

// In search order. Environment variables are not read in a program with raised rights (AT_SECURE).
[[nodiscard]] std::vector<SearchPlace> search_places(const RegistryOptions& options);

// Globs of MORTISE_PLUGINS_DISABLE ("acme.*,mortise.experimental"), matched against pack ids; empty without it.
[[nodiscard]] std::vector<std::string> disabled_globs(const RegistryOptions& options);
[[nodiscard]] bool glob_matches(std::string_view glob, std::string_view text);  // * and ? only

// <program>/../lib/mortise/packs
[[nodiscard]] std::filesystem::path default_builtin_dir();

}  // namespace mortise
