// The system calls that no code of others needs here: neither a reward in a worker nor a program that a model wrote.
#pragma once

#include <cstdint>
#include <vector>

#include "sandbox/call_filter.h"

namespace mortise::sandbox {

struct SystemCall {
  int number;  // SCMP_SYS(name): negative if this processor does not have it
  const char* name;
};

// Both filters refuse these with EPERM. They reach into other processes, the kernel or the machine, or they are ways
// out of a file system.
const std::vector<SystemCall>& never_needed_calls();

// What makes a sandbox, and could undo one. Both filters refuse these with EPERM, except in workers whose reward makes
// sandboxes of its own.
const std::vector<SystemCall>& sandbox_making_calls();

struct NamespaceFlag {
  std::uint32_t bit;  // CLONE_NEWUSER
  const char* name;
};

// Flags of clone that make a namespace, as unshare does. There is no flag for a time namespace: clone has no bit left.
const std::vector<NamespaceFlag>& namespace_flags();

// clone with one of these flags gives EPERM. clone3 gives ENOSYS, because its flags are behind a pointer; callers then
// use clone.
void refuse_namespaces(CallFilter& filter);

}  // namespace mortise::sandbox
