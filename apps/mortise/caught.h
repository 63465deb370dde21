// What a command tells of an exception that nothing below it caught.
#pragma once

#include <exception>
#include <new>

#include "foundation/base/result.h"

namespace mortise {

// Out of memory, or a bug in Mortise. The code that knows what took the memory tells it itself; this is the last resort.
[[nodiscard]] inline Error caught_error(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorKind::kInternal, "this process gets no more memory", "mortise",
            "free memory or raise the limit (ulimit -v, the limit of a container); --dry-run says what a run needs"};
  }
  return {ErrorKind::kInternal, exception.what(), "mortise", "this is a bug in Mortise; please report it"};
}

}  // namespace mortise
