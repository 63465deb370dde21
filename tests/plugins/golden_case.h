// GoldenCase: one file of tests/golden/tensors, as vectors of double and the parameters as TOML would spell them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mortise::test {

struct GoldenCase {
  std::string file, plugin;
  std::map<std::string, std::string> params;
  std::map<std::string, double> metrics;
  std::map<std::string, std::vector<double>> tensors;  // "in.log_prob"
  int64_t num_rows = 0, width = 0;

  const std::vector<double>& at(const std::string& name) const { return tensors.at(name); }
  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  std::string param(const std::string& name, const std::string& fallback) const {
    const auto it = params.find(name);
    return it == params.end() ? fallback : it->second;
  }
};

// All cases of a kind and plugin in a folder of tests/golden, in the order of their numbers.
std::vector<GoldenCase> golden_cases(const std::string& kind, const std::string& plugin,
                                     const std::string& folder = "tensors");

}  // namespace mortise::test
