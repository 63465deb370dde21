// Adds rules to a libseccomp filter, and exports or installs it.
#include "sandbox/call_filter.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mortise::sandbox {
namespace {

constexpr std::uint32_t kWholeValue = 0xFFFFFFFFU;

// libseccomp asks the kernel what it can do unless a level is set. Level 3 (Linux 4.14) is what the filters need; a kernel
// without it refuses the program when it is installed.
scmp_filter_ctx new_context() {
  static const int is_set = ::seccomp_api_set(3);
  (void)is_set;
  return ::seccomp_init(SCMP_ACT_ALLOW);
}

}  // namespace

CallFilter::CallFilter() : context_(new_context()) {
  keep(context_ == nullptr ? -ENOMEM : ::seccomp_attr_set(context_, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS));
}

CallFilter::~CallFilter() {
  if (context_ != nullptr) ::seccomp_release(context_);
}

void CallFilter::keep(int status) {
  if (status_ == 0) status_ = status;
}

void CallFilter::refuse(int call, int code) {
  if (context_ != nullptr)
    keep(::seccomp_rule_add_array(context_, SCMP_ACT_ERRNO(static_cast<unsigned>(code)), call, 0, nullptr));
}

void CallFilter::add(std::uint32_t action, int call, unsigned argument, std::uint32_t mask, std::uint32_t value) {
  if (context_ == nullptr) return;
  const scmp_arg_cmp condition{argument, SCMP_CMP_MASKED_EQ, mask, value};
  keep(::seccomp_rule_add_array(context_, action, call, 1, &condition));
}

void CallFilter::refuse_value(int call, unsigned argument, std::uint32_t value, int code) {
  add(SCMP_ACT_ERRNO(static_cast<unsigned>(code)), call, argument, kWholeValue, value);
}

void CallFilter::refuse_bits(int call, unsigned argument, std::uint32_t bits, int code) {
  for (std::uint32_t bit = 1; bit != 0; bit <<= 1U)
    if ((bits & bit) != 0) add(SCMP_ACT_ERRNO(static_cast<unsigned>(code)), call, argument, bit, bit);
}

void CallFilter::refuse_without_bit(int call, unsigned argument, std::uint32_t bit, int code) {
  add(SCMP_ACT_ERRNO(static_cast<unsigned>(code)), call, argument, bit, 0);
}

void CallFilter::refuse_unless(int call, unsigned argument, const std::vector<std::uint32_t>& allowed, int code) {
  // libseccomp takes one condition on an argument in a rule, so the values between the allowed ones have a rule each.
  std::uint32_t next = 0;
  for (const std::uint32_t value : allowed) {
    for (; next < value; ++next) refuse_value(call, argument, next, code);
    next = value + 1;
  }
  if (context_ == nullptr) return;
  const scmp_arg_cmp above{argument, SCMP_CMP_GE, next, 0};
  keep(::seccomp_rule_add_array(context_, SCMP_ACT_ERRNO(static_cast<unsigned>(code)), call, 1, &above));
}

void CallFilter::kill_if(int call, unsigned argument, std::uint32_t mask, std::uint32_t value) {
  add(SCMP_ACT_KILL_PROCESS, call, argument, mask, value);
}

FilterProgram CallFilter::program() const {
  const auto failed = [](int code) { return FilterProgram{"", std::strerror(code)}; };
  if (status_ != 0) return failed(-status_);
  // This version of libseccomp writes the program to a file only.
  const int file = ::memfd_create("mortise", MFD_CLOEXEC);
  if (file < 0) return failed(errno);
  FilterProgram out;
  struct stat info {};
  if (const int status = ::seccomp_export_bpf(context_, file); status != 0) {
    out = failed(-status);
  } else if (::fstat(file, &info) != 0) {
    out = failed(errno);
  } else {
    out.bytes.resize(static_cast<std::size_t>(info.st_size));
    if (::pread(file, out.bytes.data(), out.bytes.size(), 0) != info.st_size) out = failed(EIO);
  }
  ::close(file);
  return out;
}

int install_filter(const std::string& bytes) {
  sock_fprog program{static_cast<unsigned short>(bytes.size() / sizeof(sock_filter)),
                     reinterpret_cast<sock_filter*>(const_cast<char*>(bytes.data()))};
  const bool done =
      ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  return done ? 0 : errno;
}

}  // namespace mortise::sandbox
