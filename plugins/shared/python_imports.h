// The files in the folder of a Python file that its import statements name, so that a resume detects an edit of them.
//
// Reads the source, without an interpreter, so that an import inside a function counts too. It does not see modules
// that Python finds at run time (importlib, a longer sys.path). Thread rule: free functions without state.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mortise {

struct PythonImports {
  std::filesystem::path folder;    // the file's folder, links resolved: where `python FILE` looks first
  std::vector<std::string> files;  // below it, sorted; the file itself is not among them
};

// All that `file` imports from its folder, and what those import. A Failure where one cannot be read.
PythonImports find_python_imports(const std::filesystem::path& file);

// A Failure if it cannot be read.
std::string read_python_file(const std::filesystem::path& file);

}  // namespace mortise
