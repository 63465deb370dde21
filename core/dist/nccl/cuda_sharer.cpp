// libmortise_nccl.so: memory of the GPU for another process on it. See CudaSharer in nccl_module.h. Does what torch does for
// a tensor in a multiprocessing queue: the other side counts down when it has let go.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <torch/csrc/CudaIPCTypes.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/nccl/nccl_module.h"

namespace mortise {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

class Sharer final : public CudaSharer {
 public:
  explicit Sharer(int gpu) : device_(static_cast<c10::DeviceIndex>(gpu)) {
    cudaDeviceProp properties{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    uuid_ = uuid_text(properties.uuid);
  }

  std::string share(std::span<const std::byte> bytes, SharedPiece& out) override {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      const auto count = static_cast<int64_t>(bytes.size());
      const at::Tensor host = at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, at::kByte);
      const at::Tensor piece = host.to(at::Device(at::kCUDA, device_));
      c10::cuda::getCurrentCUDAStream(device_).synchronize();
      c10::StorageImpl* const storage = piece.storage().unsafeGetStorageImpl();
      const auto shared = c10::cuda::CUDACachingAllocator::shareIpcHandle(storage->mutable_data());
      out.device_uuid = uuid_;
      out.device = device_;
      out.handle = shared.handle;
      out.offset = static_cast<uint64_t>(shared.offset);
      out.num_bytes = storage->nbytes();
      at::DataPtr counted = torch::GetNewRefCountedSentData(storage->mutable_data(), storage->device());
      at::DataPtr original = storage->set_data_ptr(std::move(counted));
      auto* const sent = static_cast<torch::CudaIPCSentData*>(storage->data_ptr().get_context());
      sent->set_original_ptr(std::move(original));
      out.counter = sent->handle();
      out.counter_offset = sent->offset();
      out.waits_for_event = sent->event_sync_required_;
      cudaIpcEventHandle_t event{};
      if (sent->event_sync_required_) C10_CUDA_CHECK(cudaIpcGetEventHandle(&event, sent->event_));
      out.event.assign(event.reserved, sizeof event.reserved);
      kept_.push_back(piece);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  c10::DeviceIndex device_;
  std::string uuid_;
  std::vector<at::Tensor> kept_;
};

}  // namespace
}  // namespace mortise

extern "C" __attribute__((visibility("default"))) mortise::CudaSharer* mortise_cuda_sharer(int gpu,
                                                                                           std::string* error) {
  try {
    return std::make_unique<mortise::Sharer>(gpu).release();
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
