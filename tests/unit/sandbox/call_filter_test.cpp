// Each kind of rule, the doors of other ABIs, and that libseccomp knows every call of the shared list.
#include "sandbox/call_filter.h"

#include <gtest/gtest.h>
#include <seccomp.h>

#include <csignal>
#include <set>
#include <string>

#include "sandbox/refused_calls.h"
#include "support/filter_verdict.h"

namespace mortise::test {
namespace {

using sandbox::CallFilter;

constexpr Verdict kAllowed{kLetThrough, 0};
constexpr Verdict kRefused{EPERM, 0};
constexpr Verdict kEnded{0, SIGSYS};
constexpr long kDirtyHighBits = long{1} << 40;

TEST(CallFilterTest, RefusesACallAndNoOther) {
  CallFilter filter;
  filter.refuse(SCMP_SYS(getppid), EPERM);
  filter.refuse(SCMP_SYS(getuid), ENOSYS);
  const auto program = filter.program();
  EXPECT_EQ(program.fault, "");
  EXPECT_EQ(verdict_of_call(program, SYS_getppid), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_getuid), (Verdict{ENOSYS, 0}));
  EXPECT_EQ(verdict_of_call(program, SYS_getgid), kAllowed);
}

TEST(CallFilterTest, RulesMayBeRepeated) {
  CallFilter filter;
  for (int i = 0; i < 2; ++i) {
    filter.refuse(SCMP_SYS(getppid), EPERM);
    filter.refuse_value(SCMP_SYS(kill), 0, 7, EPERM);
  }
  const auto program = filter.program();
  EXPECT_EQ(program.fault, "");
  EXPECT_EQ(verdict_of_call(program, SYS_getppid), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_kill, {7}), kRefused);
}

// The kernel looks at 32 bits of such an argument, so what the others hold must not get a call through.
TEST(CallFilterTest, LooksAtTheLowBitsOfAnArgument) {
  CallFilter filter;
  filter.refuse_value(SCMP_SYS(kill), 1, 9, EPERM);
  filter.refuse_value(SCMP_SYS(tkill), 0, static_cast<std::uint32_t>(-1), EPERM);
  const auto program = filter.program();
  EXPECT_EQ(verdict_of_call(program, SYS_kill, {5, 9}), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_kill, {5, 9 | kDirtyHighBits}), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_kill, {9, 8}), kAllowed);
  EXPECT_EQ(verdict_of_call(program, SYS_tkill, {-1}), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_tkill, {0xFFFFFFFF}), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_tkill, {1}), kAllowed);
}

TEST(CallFilterTest, RefusesBits) {
  CallFilter filter;
  filter.refuse_bits(SCMP_SYS(openat), 2, 0x41, EPERM);
  filter.refuse_without_bit(SCMP_SYS(clone), 0, 0x10000, EPERM);
  const auto program = filter.program();
  for (const long flags : {0x1L, 0x40L, 0x41L, 0x43L, 0x40L | kDirtyHighBits})
    EXPECT_EQ(verdict_of_call(program, SYS_openat, {0, 0, flags}), kRefused) << flags;
  for (const long flags : {0x0L, 0x2L, 0x80L, kDirtyHighBits})
    EXPECT_EQ(verdict_of_call(program, SYS_openat, {0x41, 0x41, flags, 0x41}), kAllowed) << flags;
  EXPECT_EQ(verdict_of_call(program, SYS_clone, {0x10000 | 0x5}), kAllowed);
  EXPECT_EQ(verdict_of_call(program, SYS_clone, {0x20005}), kRefused);
  EXPECT_EQ(verdict_of_call(program, SYS_clone, {kDirtyHighBits}), kRefused);
}

TEST(CallFilterTest, RefusesAllValuesButSome) {
  CallFilter filter;
  filter.refuse_unless(SCMP_SYS(socket), 0, {1, 16}, EPERM);
  const auto program = filter.program();
  for (const long value : {1L, 16L}) EXPECT_EQ(verdict_of_call(program, SYS_socket, {value}), kAllowed) << value;
  for (const long value : {0L, 2L, 15L, 17L, 40L, -1L, 0x80000001L, 2 | kDirtyHighBits})
    EXPECT_EQ(verdict_of_call(program, SYS_socket, {value}), kRefused) << value;
}

TEST(CallFilterTest, EndsTheProcess) {
  CallFilter filter;
  filter.kill_if(SCMP_SYS(exit_group), 0, 0xFF, 137);
  const auto program = filter.program();
  EXPECT_EQ(verdict_of_call(program, SYS_exit_group, {137}), kEnded);
  EXPECT_EQ(verdict_of_call(program, SYS_exit_group, {137 + 256}), kEnded);
  EXPECT_EQ(verdict_of_call(program, SYS_exit_group, {136}), (Verdict{136, 0}));
}

TEST(CallFilterTest, AFilterWithoutRulesAllowsAll) {
  EXPECT_EQ(verdict_of_call(CallFilter().program(), SYS_getppid), kAllowed);
}

TEST(CallFilterTest, AProgramThatIsNoneIsNotInstalled) { EXPECT_EQ(sandbox::install_filter(""), EINVAL); }

TEST(CallFilterTest, ARuleThatCannotBeIsTold) {
  CallFilter filter;
  filter.refuse_value(SCMP_SYS(kill), 6, 0, EPERM);  // a call has six arguments
  const auto program = filter.program();
  EXPECT_EQ(program.bytes, "");
  EXPECT_EQ(program.fault, "Invalid argument");
}

#if defined(__x86_64__)
// A call through another ABI would have another number, and no rule would name it.
TEST(CallFilterTest, NoCallComesInThroughX32) {
  CallFilter filter;
  filter.refuse(SCMP_SYS(getppid), EPERM);
  EXPECT_EQ(verdict_of_call(filter.program(), SYS_getppid | 0x40000000L), kEnded);
  EXPECT_EQ(verdict_of_call(filter.program(), SYS_getgid | 0x40000000L), kEnded);
}

TEST(CallFilterTest, NoCallComesInThroughThe32BitDoor) {
  const auto get_pid_32 = [] {
    long result = 20;  // getpid
    asm volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    return 0;
  };
  EXPECT_EQ(verdict_of(CallFilter().program(), get_pid_32).signal, SIGSYS);
}
#endif

TEST(RefusedCalls, EveryCallHasItsNameAndStandsInOneList) {
  std::set<std::string> names;
  for (const auto* calls : {&sandbox::never_needed_calls(), &sandbox::sandbox_making_calls()}) {
    for (const sandbox::SystemCall& call : *calls) {
      EXPECT_EQ(::seccomp_syscall_resolve_name(call.name), call.number) << call.name;
      EXPECT_TRUE(names.insert(call.name).second) << call.name;
    }
  }
  EXPECT_GT(names.size(), 35U);
}

}  // namespace
}  // namespace mortise::test
