// The parameters of a reward function, read from its source without an interpreter, so that `train --dry-run` can
// report a missing data column. It does not decide what only an interpreter knows (decorators, assigned names,
// methods). Thread rule: free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct PythonSignature {
  std::string name;
  std::vector<std::string> names;     // all parameters that are given by name
  std::vector<std::string> required;  // those without a default
};

// The function of that name at the top of the file; for an empty name compute_score, reward, or the only public one.
// Nothing if there is none, or if an interpreter may see another one.
std::optional<PythonSignature> find_python_signature(std::string_view source, std::string_view function);

}  // namespace mortise
