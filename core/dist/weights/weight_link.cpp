// See weight_link.h.
#include "dist/weights/weight_link.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dist/gloo/c10d_handle.h"
#include "dist/gloo/gloo_devices.h"
#include "dist/launch/local_address.h"
#include "dist/nccl/nccl_module.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// c10d throws.
template <class Body>
Result<> guard(const char* what, const Body& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    return Error{ErrorKind::kRankFailure, fmt::format("{}: {}", what, c10d_text(error)), "", ""};
  }
}

// The interface of Gloo: a sender's is the address that it gives to others, a receiver's the one towards the sender.
std::string own_address(const WeightPlace& place) {
  if (place.rank == 0) return place.address;
  const std::string toward = address_toward(place.address, place.port);
  return toward.empty() ? place.address : toward;  // empty: the sender is on this machine
}

// What all carriers have: the store, and its key space.
class StoredLink : public WeightLink {
 public:
  StoredLink(WeightPlace place, c10::intrusive_ptr<c10d::Store> store)
      : place_(std::move(place)), store_(std::move(store)) {}
  [[nodiscard]] int port() const override {
    const auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(store_);
    return tcp ? tcp->getPort() : 0;
  }
  [[nodiscard]] std::string unique_id() const override { return ""; }
  Result<> set(const std::string& key, const std::string& value) override {
    return guard("the store of the weights' ranks failed",
                 [&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }

 protected:
  WeightPlace place_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// A backend of torch.distributed.
class GroupLink : public StoredLink {
 public:
  using StoredLink::StoredLink;
  GroupLink(const GroupLink&) = delete;
  GroupLink& operator=(const GroupLink&) = delete;
  ~GroupLink() override = default;

  Result<> join() override {
    auto made = make_group();
    if (!made.ok()) return made.error();
    const std::lock_guard lock(mutex_);
    group_ = std::move(*made);
    return {};
  }
  Result<> send(std::span<const std::byte> piece) override {
    // broadcast() takes tensors that it may write, and does not write those of its root.
    return move({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  Result<> receive(std::span<std::byte> piece) override { return move(piece); }
  void stop() override {
    const std::lock_guard lock(mutex_);
    if (group_ && place_.carrier == WeightCarrier::kNccl) group_->abort();
  }

 private:
  Result<c10::intrusive_ptr<c10d::Backend>> make_group() {
    if (place_.carrier == WeightCarrier::kNccl)
      return open_nccl_group({store_, place_.rank, place_.size, place_.timeout, place_.prefix, {}});
    c10::intrusive_ptr<c10d::Backend> group;
    TRY(guard("the ranks that the weights move between cannot be connected", [&] {
      auto options = c10d::ProcessGroupGloo::Options::create(place_.timeout);
      options->devices = gloo_devices(own_address(place_));
      group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(place_.prefix, store_),
                                                          place_.rank, place_.size, options);
    }));
    return group;
  }
  Result<> move(std::span<std::byte> piece) {
    if (!group_) return Error{ErrorKind::kInternal, "weights move before their ranks have joined", "", ""};
    if (piece.empty()) return {};
    return guard("moving the weights failed", [&] {
      at::Tensor bytes = at::from_blob(piece.data(), {static_cast<int64_t>(piece.size())}, at::kByte);
      if (place_.carrier == WeightCarrier::kNccl)
        bytes = bytes.to(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place_.gpu)));
      std::vector<at::Tensor> tensors = {bytes};
      c10d::BroadcastOptions options;
      options.timeout = place_.timeout;
      const auto work = group_->broadcast(tensors, options);
      if (place_.carrier == WeightCarrier::kNccl) wait_for_device(*work);
      work->wait();
    });
  }
  // NCCL's wait() only orders streams, and nothing watches this group's time.
  void wait_for_device(c10d::Work& work) {
    const auto deadline = std::chrono::steady_clock::now() + place_.timeout;
    while (!work.isCompleted()) {
      if (std::chrono::steady_clock::now() > deadline) {
        group_->abort();
        throw std::runtime_error("the other ranks have not answered in time");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (const std::exception_ptr failure = work.exception()) std::rethrow_exception(failure);
  }

  std::mutex mutex_;  // for the group's place, which stop() reads
  c10::intrusive_ptr<c10d::Backend> group_;
};

// NCCL without torch.distributed: only the unique id is shared, by the store or by other means.
class IdLink : public StoredLink {
 public:
  IdLink(WeightPlace place, c10::intrusive_ptr<c10d::Store> store, std::unique_ptr<NcclIdGroup> group)
      : StoredLink(std::move(place), std::move(store)), group_(std::move(group)) {}
  [[nodiscard]] std::string unique_id() const override { return group_->unique_id(); }
  Result<> join() override { return failure_of(group_->join(place_.rank, place_.size)); }
  Result<> send(std::span<const std::byte> piece) override { return failure_of(group_->send(piece)); }
  Result<> receive(std::span<std::byte>) override {
    return Error{ErrorKind::kInternal, "a connection of NCCL alone can send weights, but not receive them", "", ""};
  }
  void stop() override { group_->stop(); }

 private:
  static Result<> failure_of(const std::string& failure) {
    if (failure.empty()) return {};
    return Error{ErrorKind::kRankFailure, "NCCL failed: " + failure, "", "NCCL_DEBUG=INFO says more"};
  }
  std::unique_ptr<NcclIdGroup> group_;
};

// Memory of the GPU that a server opens.
class SharingLink : public WeightLink {
 public:
  explicit SharingLink(std::unique_ptr<CudaSharer> sharer) : sharer_(std::move(sharer)) {}
  [[nodiscard]] int port() const override { return 0; }
  [[nodiscard]] std::string unique_id() const override { return ""; }
  Result<> set(const std::string&, const std::string&) override { return unjoined(); }
  Result<> join() override { return unjoined(); }
  Result<> send(std::span<const std::byte>) override { return unjoined(); }
  Result<> receive(std::span<std::byte>) override { return unjoined(); }
  Result<SharedPiece> share(std::span<const std::byte> piece) override {
    SharedPiece out;
    const std::string failure = sharer_->share(piece, out);
    if (failure.empty()) return out;
    return Error{ErrorKind::kRankFailure, "sharing memory of the GPU failed: " + failure, "", ""};
  }
  void stop() override {}

 private:
  static Error unjoined() {
    return {ErrorKind::kInternal, "weights in shared memory of a GPU are not sent: call share", "", ""};
  }
  std::unique_ptr<CudaSharer> sharer_;
};

}  // namespace

Result<SharedPiece> WeightLink::share(std::span<const std::byte>) {
  return Error{ErrorKind::kInternal, "this way of sending weights cannot share memory: call send", "", ""};
}

Result<std::unique_ptr<WeightLink>> open_weight_link(const WeightPlace& place) {
  if (place.carrier == WeightCarrier::kCudaIpc)
    return std::unique_ptr<WeightLink>(std::make_unique<SharingLink>(TRY(open_cuda_sharer(place.gpu))));
  if (place.rank == 0 && !is_own_address(place.address))
    return Error{
        ErrorKind::kConfig,
        fmt::format("{} is not an address of this machine, so servers cannot get weights there", quote(place.address)),
        "", "give the address at which servers reach this machine (transfer_address), or leave it empty"};
  std::unique_ptr<NcclIdGroup> ids;
  if (place.carrier == WeightCarrier::kNcclId) ids = TRY(open_nccl_id_group(place.gpu, place.timeout));
  StorePlace where;
  where.address = place.address;
  where.port = place.port;
  where.serve = place.rank == 0;
  where.size = place.size;
  const auto store = TRY(connect_store(where, place.timeout));
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store->handle()->store);
  auto plain = prefixed->getUnderlyingNonPrefixStore();  // other programs know nothing of our prefix
  if (ids) return std::unique_ptr<WeightLink>(std::make_unique<IdLink>(place, std::move(plain), std::move(ids)));
  return std::unique_ptr<WeightLink>(std::make_unique<GroupLink>(place, std::move(plain)));
}

}  // namespace mortise
