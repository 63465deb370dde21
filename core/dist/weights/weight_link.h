// WeightLink: one end of a connection over which a trainer sends weights to the processes that sample. The trainer is rank
// 0 and serves the store at which all ranks meet. Weights move as bytes, one broadcast for each piece.
//
// Thread rule: one thread at a time, except stop(). join(), send() and receive() wait for other ranks, at most for the
// limit of the place: BackgroundLink (below) gives them a thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "foundation/base/result.h"

namespace mortise {

// What another process on the same GPU needs to open a piece of memory, in the terms of torch's
// UntypedStorage._new_shared_cuda.
struct SharedPiece {
  std::string device_uuid;  // as torch writes it, without "GPU-"
  int device = 0;
  std::string handle;
  uint64_t num_bytes = 0, offset = 0;
  std::string counter;
  uint64_t counter_offset = 0;
  std::string event;
  bool waits_for_event = false;
};

enum class WeightCarrier {
  kGloo,     // ProcessGroupGloo of torch.distributed
  kNccl,     // its ProcessGroupNCCL
  kNcclId,   // NCCL alone, among those that know the unique id
  kCudaIpc,  // memory of the trainer's GPU, which a server on it opens; nothing is joined or sent
};

struct WeightPlace {
  WeightCarrier carrier = WeightCarrier::kGloo;
  std::string address;  // the store's; rank 0: this machine's, as the others reach it
  int port = 0;         // the store's; rank 0 takes any free one
  std::string prefix;   // begins the group's keys in the store
  int rank = 0;
  int size = 2;
  std::chrono::milliseconds timeout{600'000};
  int gpu = 0;  // for all carriers but kGloo: the number of the GPU that sends
};

class WeightLink {
 public:
  virtual ~WeightLink() = default;
  [[nodiscard]] virtual int port() const = 0;
  // 128 bytes for kNcclId, otherwise empty.
  [[nodiscard]] virtual std::string unique_id() const = 0;
  // A key of the store that is none of the group's own.
  virtual Result<> set(const std::string& key, const std::string& value) = 0;
  virtual Result<> join() = 0;
  virtual Result<> send(std::span<const std::byte> piece) = 0;
  virtual Result<> receive(std::span<std::byte> piece) = 0;
  // For kCudaIpc: the pieces stay on the GPU until the link goes.
  virtual Result<SharedPiece> share(std::span<const std::byte> piece);
  // From any thread: ends a call that waits, if the carrier can be interrupted (NCCL can, Gloo cannot).
  virtual void stop() = 0;
};

// Rank 0 serves the store, the others connect to it. Errors of kind config: this process cannot use the carrier.
Result<std::unique_ptr<WeightLink>> open_weight_link(const WeightPlace& place);

// A link whose calls run on a thread. When the object goes, a call that waits for other ranks and cannot be interrupted
// continues until its limit, and nobody waits for it.
class BackgroundLink {
 public:
  using Work = std::function<Result<>(WeightLink&)>;
  using Done = std::function<void(const Result<>&)>;

  explicit BackgroundLink(std::unique_ptr<WeightLink> link);
  BackgroundLink(const BackgroundLink&) = delete;
  BackgroundLink& operator=(const BackgroundLink&) = delete;
  ~BackgroundLink();

  // Precondition: nothing runs. `done` is called on the thread of the work, also after the end of this object.
  void start(Work work, Done done = {});
  // Empty while the work runs, then how it ended.
  [[nodiscard]] std::optional<Result<>> look() const;
  // Precondition: nothing runs.
  [[nodiscard]] WeightLink& link() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mortise
