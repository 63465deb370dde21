// Allocates a buffer with guard words, and checks them after the call.
#include "plugin/host/guarded_output.h"

#include <fmt/core.h>

#include <cstdlib>
#include <new>

namespace mortise {
namespace {

constexpr size_t kOutputAlign = 64;

// No two neighbours alike, and nothing that floats or counters often are.
std::byte guard_byte(size_t at) { return static_cast<std::byte>(0xA5U ^ (at * 0x3BU)); }

}  // namespace

void GuardedOutput::Free::operator()(std::byte* memory) const { std::free(memory); }

GuardedOutput::GuardedOutput(size_t bytes)
    : bytes_(bytes),
      total_((kGuardBytes + bytes + kGuardBytes + kOutputAlign - 1) / kOutputAlign * kOutputAlign),
      memory_(static_cast<std::byte*>(std::aligned_alloc(kOutputAlign, total_))) {
  if (memory_ == nullptr) throw std::bad_alloc();
  for (size_t at = 0; at < kGuardBytes; ++at) memory_.get()[at] = guard_byte(at);
  for (size_t at = kGuardBytes + bytes_; at < total_; ++at) memory_.get()[at] = guard_byte(at);
}

std::string GuardedOutput::damage() const {
  const std::byte* const memory = memory_.get();
  size_t before = 0, behind = 0;
  for (size_t at = 0; at < kGuardBytes; ++at) before += memory[at] != guard_byte(at) ? 1 : 0;
  for (size_t at = kGuardBytes + bytes_; at < total_; ++at) behind += memory[at] != guard_byte(at) ? 1 : 0;
  // A written byte may happen to be that of the guard: the number is the least that was written.
  const auto text = [](size_t count, const char* where) {
    return fmt::format("wrote at least {}{}{}", count, count == 1 ? " byte " : " bytes ", where);
  };
  if (behind > 0) return text(behind, "behind the end of");
  if (before > 0) return text(before, "in front of");
  return "";
}

}  // namespace mortise
