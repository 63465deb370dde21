// `mortise plugin check FILE`: tests a pack against the rules of the SDK. Every case runs in a process of its own.
#pragma once

#include "commands.h"

namespace mortise {

// Prints to standard output. `code` becomes 4 where a case found a fault.
Result<> run_plugin_check(Arguments args, int* code);

}  // namespace mortise
