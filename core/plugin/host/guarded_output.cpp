// Allocates a buffer with guard words, and checks them after the call.
#include "plugin/host/guarded_output.h"

#include <fmt/core.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace mortise {
namespace {

constexpr size_t kOutputAlign = 64;

// No two neighbours alike, and nothing that floats or counters often are. It repeats after 256 bytes.
constexpr std::byte guard_byte(size_t at) { return static_cast<std::byte>(0xA5U ^ (at * 0x3BU)); }

// The longest guard: what follows an output up to its alignment belongs to it.
constexpr auto kGuard = [] {
  std::array<std::byte, GuardedOutput::kGuardBytes + kOutputAlign> bytes{};
  for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = guard_byte(at);
  return bytes;
}();

size_t num_changed(const std::byte* guard, size_t size) {
  if (std::memcmp(guard, kGuard.data(), size) == 0) return 0;
  size_t changed = 0;
  for (size_t at = 0; at < size; ++at) changed += guard[at] != kGuard[at] ? 1 : 0;
  return changed;
}

size_t total_bytes(size_t bytes) {
  return (2 * GuardedOutput::kGuardBytes + bytes + kOutputAlign - 1) / kOutputAlign * kOutputAlign;
}

std::byte* allocate(size_t bytes) {
  void* const memory = std::aligned_alloc(kOutputAlign, total_bytes(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

void GuardedOutput::Free::operator()(std::byte* memory) const { std::free(memory); }

GuardedOutput::GuardedOutput(size_t bytes)
    : memory_(allocate(bytes)),
      data_(memory_.get() + kGuardBytes),
      bytes_(bytes),
      bytes_behind_(total_bytes(bytes) - bytes - kGuardBytes) {
  write_guards();
}

GuardedOutput::GuardedOutput(void* data, size_t bytes)
    : data_(static_cast<std::byte*>(data)), bytes_(bytes), bytes_behind_(kGuardBytes) {
  write_guards();
}

void GuardedOutput::write_guards() {
  std::memcpy(data_ - kGuardBytes, kGuard.data(), kGuardBytes);
  std::memcpy(data_ + bytes_, kGuard.data(), bytes_behind_);
}

std::string GuardedOutput::damage() const {
  // A written byte may happen to be that of the guard: the number is the least that was written.
  const auto text = [](size_t count, const char* where) {
    return fmt::format("wrote at least {}{}{}", count, count == 1 ? " byte " : " bytes ", where);
  };
  if (const size_t behind = num_changed(data_ + bytes_, bytes_behind_); behind > 0)
    return text(behind, "behind the end of");
  if (const size_t before = num_changed(data_ - kGuardBytes, kGuardBytes); before > 0)
    return text(before, "in front of");
  return "";
}

}  // namespace mortise
