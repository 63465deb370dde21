// Maps the guarded regions and handles the signal of a forbidden access.
#include "conformance/guarded_memory.h"

#include <fmt/core.h>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace mortise::check {
namespace {

constexpr size_t kPage = 4096;  // a larger real page only makes the zones larger
constexpr std::byte kCanary{0xA5};
constexpr size_t kMaxRegions = 4096;

struct Region {
  std::atomic<const std::byte*> mapping;  // null: free
  size_t mapping_size;
  const std::byte* data;
  size_t size;
  char name[48];
};
Region regions[kMaxRegions];  // plain memory: read by a signal handler
int report_fd = -1;

size_t page_size() {
  static const size_t size = std::max(kPage, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  return size;
}

Region* find_region(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (Region& region : regions) {
    const std::byte* begin = region.mapping.load();
    if (begin != nullptr && at >= begin && at < begin + region.mapping_size) return &region;
  }
  return nullptr;
}

bool was_write(const void* context) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return false;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const Region* region = find_region(info->si_addr);
  const char* verb = was_write(context) ? "wrote" : "read";
  char line[256];
  int size = 0;
  if (region == nullptr) {
    size =
        std::snprintf(line, sizeof line, "{\"status\":\"failed\",\"text\":\"%s address %p, which it was not given\"}\n",
                      verb, info->si_addr);
  } else {
    const auto* at = static_cast<const std::byte*>(info->si_addr);
    const char* where = at < region->data ? "before" : at < region->data + region->size ? "to" : "behind the end of";
    size = std::snprintf(line, sizeof line, "{\"status\":\"failed\",\"text\":\"%s %s '%s' of %zu bytes%s\"}\n", verb,
                         where, region->name, region->size,
                         at >= region->data && at < region->data + region->size ? ", which is read-only" : "");
  }
  if (size > 0) (void)!::write(report_fd, line, static_cast<size_t>(size));
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

GuardedMemory::GuardedMemory(const std::string& name, size_t size, size_t align) : name_(name), size_(size) {
  const size_t rounded = (size + align - 1) / align * align;
  const size_t inner = std::max(page_size(), (rounded + page_size() - 1) / page_size() * page_size());
  mapping_size_ = inner + 2 * page_size();
  void* mapping = ::mmap(nullptr, mapping_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  std::byte* first = mapping_ + page_size();
  if (::mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(mapping_, mapping_size_);
    throw std::bad_alloc();
  }
  data_ = first + inner - rounded;
  std::memset(first, static_cast<int>(kCanary), inner);
  std::memset(data_, 0, size);
  for (Region& region : regions) {
    const std::byte* free = nullptr;
    if (region.mapping.load(std::memory_order_relaxed) != nullptr) continue;
    if (!region.mapping.compare_exchange_strong(free, mapping_)) continue;
    region_ = static_cast<int>(&region - regions);
    region.mapping_size = mapping_size_;
    region.data = data_;
    region.size = size_;
    std::snprintf(region.name, sizeof region.name, "%s", name.c_str());
    break;
  }
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : name_(std::move(other.name_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_size_(other.mapping_size_),
      data_(other.data_),
      size_(other.size_),
      region_(other.region_) {}

GuardedMemory::~GuardedMemory() {
  if (mapping_ == nullptr) return;
  if (region_ >= 0) regions[region_].mapping.store(nullptr);
  ::munmap(mapping_, mapping_size_);
}

void GuardedMemory::make_read_only() { ::mprotect(mapping_ + page_size(), mapping_size_ - 2 * page_size(), PROT_READ); }

std::string GuardedMemory::damage() const {
  const std::byte* first = mapping_ + page_size();
  const std::byte* last = mapping_ + mapping_size_ - page_size();
  for (const std::byte* at = first; at < last; ++at) {
    if (at >= data_ && at < data_ + size_) continue;
    if (*at == kCanary) continue;
    const bool before = at < data_;
    const auto distance = before ? data_ - at : at - (data_ + size_) + 1;
    return fmt::format("wrote {} bytes {} '{}' of {} bytes", distance, before ? "before" : "behind the end of", name_,
                       size_);
  }
  return "";
}

void report_faults(int fd) {
  report_fd = fd;
  static std::byte stack[64 * 1024];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  ::sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, nullptr);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace mortise::check
