// See staged_copies.h.
#include "model/device/staged_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mortise {
namespace {

class TorchStream final : public CopyStream {
 public:
  explicit TorchStream(c10::Device device) : device_(device) {}

  at::Tensor host_bytes(int64_t size) override {
    return at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda()));
  }
  void start(const at::Tensor& to, const at::Tensor& from) override { to.copy_(from, /*non_blocking=*/true); }
  std::function<void()> mark() override {
    if (!device_.is_cuda()) return [] {};
    const auto event = std::make_shared<c10::Event>(device_.type());
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    return [event] { event->synchronize(); };
  }

 private:
  c10::Device device_;
};

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

}  // namespace

std::unique_ptr<CopyStream> copy_stream(c10::Device device) { return std::make_unique<TorchStream>(device); }

void StagedCopies::settle(Buffer& buffer) {
  if (!buffer.wait) return;
  std::exchange(buffer.wait, nullptr)();
  if (!buffer.target.defined()) return;
  const at::Tensor target = std::exchange(buffer.target, at::Tensor());
  std::memcpy(target.mutable_data_ptr(), buffer.bytes.const_data_ptr(), target.nbytes());
  if (const auto done = std::exchange(buffer.done, nullptr)) done();
}

StagedCopies::Buffer& StagedCopies::next() {
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  settle(buffer);
  if (!buffer.bytes.defined()) buffer.bytes = stream_->host_bytes(buffer_bytes_);
  return buffer;
}

void StagedCopies::send(const at::Tensor& from_host, const at::Tensor& to_device) {
  const at::Tensor from = bytes_of(from_host), to = bytes_of(to_device);
  for (int64_t begin = 0; begin < from.numel(); begin += buffer_bytes_) {
    const int64_t size = std::min(buffer_bytes_, from.numel() - begin);
    Buffer& buffer = next();
    std::memcpy(buffer.bytes.mutable_data_ptr(), static_cast<const std::byte*>(from.const_data_ptr()) + begin,
                static_cast<size_t>(size));
    stream_->start(to.narrow(0, begin, size), buffer.bytes.narrow(0, 0, size));
    buffer.wait = stream_->mark();
  }
}

void StagedCopies::receive(const at::Tensor& from_device, const at::Tensor& to_host, std::function<void()> done) {
  const at::Tensor from = bytes_of(from_device), to = bytes_of(to_host);
  for (int64_t begin = 0; begin < from.numel(); begin += buffer_bytes_) {
    const int64_t size = std::min(buffer_bytes_, from.numel() - begin);
    Buffer& buffer = next();
    stream_->start(buffer.bytes.narrow(0, 0, size), from.narrow(0, begin, size));
    buffer.wait = stream_->mark();
    buffer.target = to.narrow(0, begin, size);
    if (begin + size == from.numel()) buffer.done = std::move(done);
  }
}

void StagedCopies::finish() {
  for (size_t i = 0; i < buffers_.size(); ++i) settle(buffers_[(next_ + i) % buffers_.size()]);
}

}  // namespace mortise
