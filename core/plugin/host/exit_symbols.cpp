// _exit and _Exit of a program that loads packs: as in the C library, except that a pack which calls them is named.
//
// Without this a plugin that calls _exit(0) would end a run in the middle with the exit code of success. It is no part of
// the room: programs add the file to their sources, and the linker option makes shared objects find it first.
#include <sys/syscall.h>
#include <unistd.h>

#include "plugin/host/running_code.h"

namespace {

[[noreturn]] void end_process(const char* function, int status) {
  mortise::report_exit(function, status);
  while (true) ::syscall(SYS_exit_group, status);
}

}  // namespace

extern "C" __attribute__((noreturn, visibility("default"))) void _exit(int status) { end_process("_exit", status); }
extern "C" __attribute__((noreturn, visibility("default"))) void _Exit(int status) noexcept {
  end_process("_Exit", status);
}
