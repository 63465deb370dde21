// The kind of an Error whose cause is another rank.
#pragma once

#include "foundation/base/result.h"

namespace mortise {

// A rank died, hangs, or disagrees with the others (docs/exit_codes.md).
inline constexpr ErrorKind kRankFailure = static_cast<ErrorKind>(7);

}  // namespace mortise
