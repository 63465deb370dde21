// Which files beside a Python file its import statements lead to, so that a resume sees an edit of them.
//
// Read off the source, without an interpreter, so that an import inside a function counts before it is made. Not seen
// is what is found at run time only (importlib, a longer sys.path). Thread rule: free function without state.
#pragma once

#include <string>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct PythonImports {
  Path folder;                     // of the file, links resolved: where `python FILE` looks first
  std::vector<std::string> files;  // below it, sorted; the file itself is not among them
};

// All that `file` imports from its folder, and what those import. An Error where one cannot be read.
Result<PythonImports> find_python_imports(Env& env, const Path& file);

}  // namespace mortise
