// Ends a program before libtorch's destructors. They take 0.1 s, a third of a short command, and free what the kernel frees
// anyway. Everything that the program itself made is still destroyed: exit handlers run in the reverse order of their
// registration, and this file registers one after the constructors of the linked libraries and before the program's own.
//
// It is no part of the room: programs add the object library mortise_libtorch_end. Nothing calls it, and the linker drops
// such a file from a static library.
#include "model/tensor/libtorch_end.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

std::atomic<bool> g_ends_libraries = MORTISE_SANITIZED != 0;  // the leak checker is a destructor too

void end_now(int status, void* /*unused*/) {
  if (g_ends_libraries.load()) return;
  std::fflush(nullptr);  // the C library does it after the last handler
  ::_exit(status);
}

// 101 is the first priority that programs may use.
__attribute__((constructor(101))) void register_the_end() { ::on_exit(end_now, nullptr); }

}  // namespace

namespace mortise {

void end_libraries_too() { g_ends_libraries.store(true); }

}  // namespace mortise
