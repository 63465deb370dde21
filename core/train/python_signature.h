// The parameters of a reward function, read off its source without an interpreter, so that `train --dry-run` can say
// that a data column is missing. What only an interpreter knows (decorators, names that are assigned, methods) is not
// judged. Thread rule: free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct PythonSignature {
  std::string name;
  std::vector<std::string> names;     // of all parameters that are given by name
  std::vector<std::string> required;  // those without a default
};

// The function of that name at the top of the file; for an empty name compute_score, reward, or the only public one.
// Nothing where there is none, or where an interpreter may see another one.
std::optional<PythonSignature> find_python_signature(std::string_view source, std::string_view function);

}  // namespace mortise
