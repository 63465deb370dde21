// What the programs `mortise` and `mortise-engine` do differently. Both have all commands.
//
// Loading libtorch takes a quarter of a second of processor time, and most commands need none of it. `mortise` does not link
// it. A command that needs libtorch replaces the process by mortise-engine, with the same words (without_libtorch.cpp).
// There it runs (with_libtorch.cpp).
#pragma once

#include <exception>
#include <optional>

#include "foundation/base/result.h"

namespace mortise {

// What main does, in both programs. Returns the exit code.
int run_program(int argc, char** argv);

// argv of main.
inline char** g_program_words = nullptr;

// Main calls it first: settings that concern libtorch.
void prepare_engine();

// The exceptions of libtorch that are no bugs.
[[nodiscard]] std::optional<Error> engine_error(const std::exception& exception);

// Only the program without libtorch sets it. It returns only if mortise-engine cannot be started.
inline Result<> (*g_become_engine)() = nullptr;

// A command that both programs have calls it once it knows that it needs libtorch, before it has written anything.
inline Result<> need_libtorch() { return g_become_engine == nullptr ? Result<>() : g_become_engine(); }

}  // namespace mortise
