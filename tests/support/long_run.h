// Whether a test takes all of its cases: with MORTISE_LONG=1, as ./dev test --long sets it.
#pragma once

#include <cstdlib>

namespace mortise::test {

inline bool is_long() { return std::getenv("MORTISE_LONG") != nullptr; }

}  // namespace mortise::test
