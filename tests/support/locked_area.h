// Memory that the host cannot use except between open() and close(), as that of a GPU: for tests of packs that take
// tensors of a device. Each allocation has pages of its own and begins with rubbish. Thread rule: one thread.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>

#include "support/emulated_cuda/stream.h"

namespace mortise::test {

class LockedArea {
 public:
  static LockedArea& instance() {
    static LockedArea area;
    return area;
  }
  static const EmulatedStream* stream() {
    static const EmulatedStream it = {[](size_t bytes) { return instance().allocate(bytes); },
                                      [](void* data) { instance().release(data); }, [] { instance().open(); },
                                      [] { instance().close(); }, [] { ++instance().num_launches_; }};
    return &it;
  }

  void* allocate(size_t bytes) {
    const size_t size = (bytes + kPage - 1) / kPage * kPage + kPage;  // never none
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::runtime_error("no memory for the locked area");
    std::memset(data, 0xAB, size);
    sizes_[data] = size;
    if (num_open_ == 0) mprotect(data, size, PROT_NONE);
    return data;
  }
  void release(void* data) {
    const auto found = sizes_.find(data);
    if (found == sizes_.end()) throw std::runtime_error("the locked area has no such memory");
    munmap(data, found->second);
    sizes_.erase(found);
  }
  void open() {
    if (num_open_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--num_open_ == 0) protect(PROT_NONE);
  }
  void copy(void* to, const void* from, size_t bytes) {
    open();
    if (bytes > 0) std::memcpy(to, from, bytes);
    close();
  }
  [[nodiscard]] size_t num_allocations() const { return sizes_.size(); }
  [[nodiscard]] int64_t num_launches() const { return num_launches_; }  // since the program began

 private:
  static constexpr size_t kPage = 4096;
  void protect(int rights) {
    for (const auto& [data, size] : sizes_) mprotect(data, size, rights);
  }

  std::map<void*, size_t> sizes_;
  int num_open_ = 0;
  int64_t num_launches_ = 0;
};

}  // namespace mortise::test
