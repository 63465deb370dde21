// Memory shared with a worker: an unnamed file (memfd) and its mapping here.
//
// The sizes are sealed, so no side can cut pages away under the other; input areas are sealed against writing too, so a
// worker can map them for reading only. Threading: plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "foundation/base/result.h"
#include "plugin/worker/fd.h"
#include "plugin/worker/system.h"

namespace mortise {

class SharedMemory {
 public:
  enum class Peer { kReads, kWrites };

  // Zeroed memory that this process may write; `peer` says what the other one may do. `name` shows in /proc.
  static Result<SharedMemory> create(const char* name, size_t size, Peer peer,
                                     WorkerSystem& system = real_worker_system());
  // The other side's view of `size` bytes from `offset` on, a multiple of the page size. The file is not kept open.
  static Result<SharedMemory> map(const Fd& fd, size_t offset, size_t size, Peer peer,
                                  WorkerSystem& system = real_worker_system());
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  // The mapping remains, but the memory can no longer be given to a process.
  void close_file() { fd_.reset(); }

 private:
  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mortise
