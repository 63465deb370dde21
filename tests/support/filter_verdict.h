// What a filter of system calls answers to a call, found by making the call in a child under it.
//
// The child first installs a filter of the test's own that answers kLetThrough to all calls but those that it needs
// itself. The kernel takes the answer of the filter that was installed last if several answer with an errno. So no
// dangerous call runs, and a call that the filter under test lets through cannot be mistaken for one that the kernel
// refused.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <initializer_list>

#include "sandbox/call_filter.h"

namespace mortise::test {

constexpr int kLetThrough = 200;  // no errno has this number
constexpr int kNotInstalled = 201;

struct Verdict {
  int code = 0;    // errno; kLetThrough; 0 if the kernel ran the call
  int signal = 0;  // that ended the child
  bool operator==(const Verdict&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Verdict& verdict) {
  return out << "{errno " << verdict.code << ", signal " << verdict.signal << "}";
}

inline bool install_base_filter() {
  constexpr auto load = static_cast<unsigned short>(BPF_LD | BPF_W | BPF_ABS);
  constexpr auto equal = static_cast<unsigned short>(BPF_JMP | BPF_JEQ | BPF_K);
  constexpr auto answer = static_cast<unsigned short>(BPF_RET | BPF_K);
  sock_filter rules[] = {{load, 0, 0, offsetof(seccomp_data, nr)},
                         {equal, 2, 0, SYS_prctl},
                         {equal, 1, 0, SYS_exit_group},
                         {answer, 0, 0, SECCOMP_RET_ERRNO | kLetThrough},
                         {answer, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{std::size(rules), rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Ends the child by the call itself. Before a call of a function that never returns, such as ::_exit, clang's
// AddressSanitizer makes system calls of its own, which the filter would answer; so nothing here may be [[noreturn]].
inline void end_child(int code) {
  while (code >= 0) ::syscall(SYS_exit_group, code);
}

// Runs `act`, which returns an errno or 0, in a child under the filter.
template <class Act>
Verdict verdict_of(const sandbox::FilterProgram& filter, const Act& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!install_base_filter() || sandbox::install_filter(filter.bytes) != 0) end_child(kNotInstalled);
    end_child(act());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return {kNotInstalled, 0};
  if (WIFSIGNALED(status)) return {0, WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

inline Verdict verdict_of_call(const sandbox::FilterProgram& filter, long number,
                               std::initializer_list<long> arguments = {}) {
  std::array<long, 6> all{};
  size_t i = 0;
  for (const long argument : arguments) all[i++] = argument;
  return verdict_of(
      filter, [&] { return ::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5]) == -1 ? errno : 0; });
}

}  // namespace mortise::test
