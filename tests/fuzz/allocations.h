// How much memory is allocated at a time: counted by hooks of the sanitizer's allocator, or by the replaced operator
// new where there is no sanitizer (then malloc of C libraries is not seen).
#pragma once

#include <cstddef>

namespace mortise::fuzz {

// Counts while it lives. One at a time.
class Allocations {
 public:
  Allocations();
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;
  // The most that was allocated at a time beyond what was when this began.
  [[nodiscard]] size_t peak_bytes() const;
};

}  // namespace mortise::fuzz
