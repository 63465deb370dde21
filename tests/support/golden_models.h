// The folders under tests/golden/models: a family's folder is its test, in every test that goes through them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace mortise::test {

inline std::filesystem::path golden_model(const std::string& name) {
  return std::filesystem::path(MORTISE_SOURCE_DIR) / "tests/golden/models" / name;
}

// Names of those with a file `holds`, sorted.
inline std::vector<std::string> golden_models(const std::string& holds) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_model(""))) {
    if (std::filesystem::exists(entry.path() / holds)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace mortise::test
