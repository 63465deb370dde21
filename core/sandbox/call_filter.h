// A filter of system calls, built rule by rule with libseccomp. Calls that no rule names are allowed.
//
// A call that comes in through another ABI (32-bit or x32 on x86-64) ends the process with SIGSYS: there the numbers of
// the calls are different, so the rules would not hold. Threading: build a filter on one thread; install_filter() only
// reads. C++17: the built-in plugins include it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mortise::sandbox {

// What the kernel and `bwrap --seccomp` read.
struct FilterProgram {
  std::string bytes;
  std::string fault;  // why there are no bytes; empty if there are
};

class CallFilter {
 public:
  CallFilter();
  CallFilter(const CallFilter&) = delete;
  CallFilter& operator=(const CallFilter&) = delete;
  ~CallFilter();

  // `call` is SCMP_SYS(name). A rule for a call that this processor does not have is ignored. `code` is the errno that
  // the caller gets. The rules look at the low 32 bits of an argument.
  void refuse(int call, int code);
  void refuse_value(int call, unsigned argument, std::uint32_t value, int code);
  // If the argument has any of `bits`.
  void refuse_bits(int call, unsigned argument, std::uint32_t bits, int code);
  // If the argument has none of `bits`, which is one bit.
  void refuse_without_bit(int call, unsigned argument, std::uint32_t bit, int code);
  // Unless the argument is one of `allowed`, which are small and in ascending order.
  void refuse_unless(int call, unsigned argument, const std::vector<std::uint32_t>& allowed, int code);
  // Ends the process with SIGSYS if argument & mask is `value`.
  void kill_if(int call, unsigned argument, std::uint32_t mask, std::uint32_t value);

  [[nodiscard]] FilterProgram program() const;

 private:
  void add(std::uint32_t action, int call, unsigned argument, std::uint32_t mask, std::uint32_t value);
  void keep(int status);

  void* context_;
  int status_ = 0;  // the first failure of a call of libseccomp, a negative errno
};

// Puts the calling thread and all that it starts under the filter. Returns 0 or an errno. Async-signal-safe: a child
// may call it between fork and exec.
int install_filter(const std::string& bytes);

}  // namespace mortise::sandbox
