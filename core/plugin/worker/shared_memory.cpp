// Creates, seals and maps memfds.
#include "plugin/worker/shared_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "foundation/base/hints.h"
#include "foundation/base/open_files.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace mortise {
namespace {

Error memory_error(const char* operation, size_t size) {
  const int code = errno;
  return {ErrorKind::kPlugin, fmt::format("{} failed: {}", operation, std::strerror(code)),
          fmt::format("shared memory of a worker, {} bytes", size),
          resource_advice(code, "free memory, or run the plugin without workers")};
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const char* name, size_t size, Peer peer, WorkerSystem& system) {
  SharedMemory memory;
  memory.size_ = std::max<size_t>(size, 1);
  memory.fd_ = Fd(system.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_.valid()) return memory_error("memfd_create", memory.size_);
  if (system.ftruncate(memory.fd(), static_cast<off_t>(memory.size_)) != 0)
    return memory_error("ftruncate", memory.size_);
  void* const address = system.mmap(memory.size_, PROT_READ | PROT_WRITE, memory.fd(), 0);
  if (address == MAP_FAILED) return memory_error("mmap", memory.size_);
  memory.data_ = static_cast<std::byte*>(address);
  if (system.add_seals(memory.fd(), F_SEAL_SHRINK | F_SEAL_GROW) != 0) return memory_error("sealing", memory.size_);
  // Kernels before 5.1 lack this seal; there the worker's own promise has to do.
  if (peer == Peer::kReads && system.add_seals(memory.fd(), F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
    return memory_error("sealing", memory.size_);
  return memory;
}

Result<SharedMemory> SharedMemory::map(const Fd& fd, size_t offset, size_t size, Peer peer, WorkerSystem& system) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return memory_error("fstat", size);
  const auto file_size = static_cast<size_t>(status.st_size);
  if (offset > file_size || size > file_size - offset) {  // touching memory past the end would be a SIGBUS
    return Error{ErrorKind::kPlugin, "the memory given to a worker ends before its rows do",
                 "shared memory of a worker", hints::kOneBuildOfWorkers};
  }
  SharedMemory memory;
  memory.size_ = std::max<size_t>(size, 1);
  const int protection = peer == Peer::kReads ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const address = system.mmap(memory.size_, protection, fd.get(), static_cast<off_t>(offset));
  if (address == MAP_FAILED) return memory_error("mmap", memory.size_);
  memory.data_ = static_cast<std::byte*>(address);
  // A child that the plugin forks must not write results: in its call it finds no memory here, and RunningCode ends it after.
  if (peer == Peer::kWrites) ::madvise(address, memory.size_, MADV_DONTFORK);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace mortise
