// The filter of system calls of the sandbox. It forbids new processes, SIGKILL, and the kernel's riskier functions.
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "sandbox.h"
#include "sandbox/refused_calls.h"

namespace mortise {
namespace {

constexpr std::uint32_t kKilledCode = 128 + SIGKILL;  // how bwrap passes SIGKILL on

// A program must not be able to look as if the machine had ended it: its row would have no reward in place of a bad
// one.
void refuse_sigkill(sandbox::CallFilter& f) {
  for (const int call : {SCMP_SYS(kill), SCMP_SYS(tkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(pidfd_send_signal)})
    f.refuse_value(call, 1, SIGKILL, EPERM);
  for (const int call : {SCMP_SYS(tgkill), SCMP_SYS(rt_tgsigqueueinfo)}) f.refuse_value(call, 2, SIGKILL, EPERM);
  f.refuse_value(SCMP_SYS(prctl), 0, PR_SET_SECCOMP, EPERM);
  f.refuse_value(SCMP_SYS(prctl), 0, PR_SET_PDEATHSIG, EPERM);
  f.refuse_value(SCMP_SYS(fcntl), 1, F_SETSIG, EPERM);
  for (const std::uint32_t resource : {std::uint32_t(RLIMIT_CPU), std::uint32_t(RLIMIT_RTTIME)}) {
    // Past the hard limit the kernel sends SIGKILL.
    f.refuse_value(SCMP_SYS(prlimit64), 1, resource, EPERM);
    f.refuse_value(SCMP_SYS(setrlimit), 0, resource, EPERM);
  }
  // Ends it with SIGSYS, a failure like any other.
  for (const int call : {SCMP_SYS(exit), SCMP_SYS(exit_group)}) f.kill_if(call, 0, 0xFF, kKilledCode);
}

void refuse_processes(sandbox::CallFilter& f) {
  f.refuse(SCMP_SYS(fork), EPERM);
  f.refuse(SCMP_SYS(vfork), EPERM);
  sandbox::refuse_namespaces(f);
  f.refuse_without_bit(SCMP_SYS(clone), 0, CLONE_THREAD, EPERM);
}

}  // namespace

#define CALL(name) \
  { SCMP_SYS(name), #name }

const std::vector<sandbox::SystemCall>& program_calls() {
  static const std::vector<sandbox::SystemCall> calls = {
      // Sockets.
      CALL(socket), CALL(connect), CALL(bind),
      // Memory that is in no address space, so that the limit on it does not hold.
      CALL(memfd_create), CALL(memfd_secret), CALL(shmget), CALL(msgget), CALL(mq_open),
      // Ways to be ended by SIGKILL: timers with a signal of choice, a strict filter of its own.
      CALL(timer_create), CALL(mq_notify), CALL(seccomp)};
  return calls;
}

#undef CALL

sandbox::FilterProgram system_call_filter() {
  sandbox::CallFilter filter;
  for (const auto* calls : {&sandbox::never_needed_calls(), &sandbox::sandbox_making_calls(), &program_calls()})
    for (const sandbox::SystemCall& call : *calls) filter.refuse(call.number, EPERM);
  refuse_sigkill(filter);
  refuse_processes(filter);
  return filter.program();
}

}  // namespace mortise
