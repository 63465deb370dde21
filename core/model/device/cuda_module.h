// The libraries of lib/mortise that only runs on a GPU load. Thread rule: any thread.
#pragma once

#include <string>

namespace mortise {

// Where it is, or would be: PREFIX/lib/mortise/NAME, seen from PREFIX/bin/mortise or from a test in PREFIX/tests.
std::string cuda_module_path(const char* name);

// Loads it. Null: `reason` says why not.
void* open_cuda_module(const char* name, std::string& reason);

}  // namespace mortise
