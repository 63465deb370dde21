// The libraries of lib/mortise that only runs on a GPU load. Thread rule: any thread.
#pragma once

#include <string>

namespace mortise {

// Loads PREFIX/lib/mortise/NAME, seen from PREFIX/bin/mortise or from a test in PREFIX/tests. Null: `reason` says why not.
void* open_cuda_module(const char* name, std::string& reason);

}  // namespace mortise
