// How much memory is allocated at a time. Counted by hooks of the sanitizer's allocator or, without a sanitizer, by a
// replaced operator new, which does not count malloc of C libraries.
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
