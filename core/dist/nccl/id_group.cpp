// libmortise_nccl.so: NCCL alone. See NcclIdGroup in nccl_module.h. Communicators do not block, so that stop() and the time
// limit end every wait.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "dist/nccl/nccl_module.h"

namespace mortise {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kLook{50};

class IdGroup final : public NcclIdGroup {
 public:
  IdGroup(int gpu, std::chrono::milliseconds timeout) : timeout_(timeout), device_(static_cast<c10::DeviceIndex>(gpu)) {
    const ncclResult_t made = ncclGetUniqueId(&id_);
    if (made != ncclSuccess) throw std::runtime_error(ncclGetErrorString(made));
  }
  IdGroup(const IdGroup&) = delete;
  IdGroup& operator=(const IdGroup&) = delete;
  ~IdGroup() override {
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }

  [[nodiscard]] std::string unique_id() const override { return {id_.internal, sizeof id_.internal}; }

  std::string join(int rank, int size) override {
    return guarded([&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      settle(ncclCommInitRankConfig(&comm_, size, id_, rank, &config));
      const at::Tensor one = at::zeros({1}, at::TensorOptions().device(at::kCUDA, device_).dtype(at::kFloat));
      const auto stream = c10::cuda::getCurrentCUDAStream(device_);
      settle(ncclAllReduce(one.data_ptr(), one.data_ptr(), 1, ncclFloat, ncclSum, comm_, stream.stream()));
      wait_for(stream);
    });
  }

  std::string send(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return "";
    return guarded([&] {
      const auto count = static_cast<int64_t>(bytes.size());
      const at::Tensor host = at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, at::kByte);
      const at::Tensor piece = host.to(at::Device(at::kCUDA, device_));
      const auto stream = c10::cuda::getCurrentCUDAStream(device_);
      settle(ncclBroadcast(piece.data_ptr(), piece.data_ptr(), bytes.size(), ncclUint8, 0, comm_, stream.stream()));
      wait_for(stream);
    });
  }

  void stop() override { stops_ = true; }

 private:
  template <class Body>
  std::string guarded(const Body& body) {
    try {
      const c10::cuda::CUDAGuard guard(device_);  // the thread may be new
      deadline_ = Clock::now() + timeout_;
      body();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  void check_time() const {
    if (stops_) throw std::runtime_error("the connection was given up");
    if (Clock::now() > deadline_) throw std::runtime_error("the other ranks have not answered in time");
    std::this_thread::sleep_for(kLook);
  }
  void settle(ncclResult_t result) {
    while (result == ncclInProgress) {
      check_time();
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) throw std::runtime_error(ncclGetErrorString(result));
  }
  void wait_for(const c10::cuda::CUDAStream& stream) {
    while (!stream.query()) {
      check_time();
      ncclResult_t state = ncclSuccess;
      ncclCommGetAsyncError(comm_, &state);
      if (state != ncclSuccess && state != ncclInProgress) throw std::runtime_error(ncclGetErrorString(state));
    }
  }

  std::chrono::milliseconds timeout_;
  c10::DeviceIndex device_;
  ncclUniqueId id_{};
  ncclComm_t comm_ = nullptr;
  Clock::time_point deadline_;
  std::atomic<bool> stops_ = false;
};

}  // namespace
}  // namespace mortise

extern "C" __attribute__((visibility("default"))) mortise::NcclIdGroup* mortise_nccl_id_group(
    int gpu, std::chrono::milliseconds timeout, std::string* error) {
  try {
    return std::make_unique<mortise::IdGroup>(gpu, timeout).release();
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
