// See freed_memory.h. Options: mallopt(3).
#include "foundation/base/freed_memory.h"

#include <malloc.h>

namespace mortise {

void keep_freed_memory() {
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);
}

}  // namespace mortise
