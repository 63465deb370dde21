// StagedCopies: copies between a device and memory of the host that cannot be pinned, such as the pages of files. They go
// through a few pinned buffers. The host fills or empties one of them while the device copies others, and waits neither for
// kernels nor for the last copies.
//
// Copies are in the order of the device's stream, as kernels are: a tensor that was sent can be used, and one that is
// received can be freed, at once. A buffer is used again, or freed, when the event behind its copy has passed.
// Cost: 64 MiB of pinned memory from the first copy on, and one more pass of the host over the numbers. Thread rule: one
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace mortise {

// Where copies start: libtorch's current stream of a device, or a test's.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  // Memory of the host that copies may read and write while the host continues.
  virtual at::Tensor host_bytes(int64_t size) = 0;
  // Starts a copy. One of both is a part of such memory.
  virtual void start(const at::Tensor& to, const at::Tensor& from) = 0;
  // A function that waits until all that was started before this call is done.
  virtual std::function<void()> mark() = 0;
};

// Copies of devices other than GPUs have ended when they have started.
std::unique_ptr<CopyStream> copy_stream(c10::Device device);

class StagedCopies {
 public:
  static constexpr int64_t kBuffers = 4, kBufferBytes = int64_t{16} << 20;

  explicit StagedCopies(std::unique_ptr<CopyStream> stream, int64_t buffer_bytes = kBufferBytes)
      : stream_(std::move(stream)), buffer_bytes_(buffer_bytes), buffers_(kBuffers) {}

  // Both are contiguous, of one type and size. The host's numbers may change when this returns.
  void send(const at::Tensor& from_host, const at::Tensor& to_device);
  // The same back. The numbers are there, and `done` was called, at the latest when finish() returns.
  void receive(const at::Tensor& from_device, const at::Tensor& to_host, std::function<void()> done);
  void finish();

 private:
  struct Buffer {
    at::Tensor bytes;
    std::function<void()> wait;  // for its copy; empty: it is free
    at::Tensor target;           // bytes of the host that get its numbers; undefined: it was sent
    std::function<void()> done;
  };
  Buffer& next();
  static void settle(Buffer& buffer);

  std::unique_ptr<CopyStream> stream_;
  int64_t buffer_bytes_;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;  // whose copy is the oldest
};

}  // namespace mortise
