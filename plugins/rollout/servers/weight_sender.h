// The trainer's end of the connection over which one server gets its weights (host extension mortise.weight_group/0).
// Threading: as ServerPool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <mortise/ext/draft/weight_group.h>
#include <mortise/cpp/plugin.hpp>

#include "protocol.h"
#include "weight_image.h"

namespace mortise {

class WeightSender {
 public:
  // Listens on `address`. Fails if this process cannot use the carrier.
  WeightSender(const TransferWay& way, const std::string& address, std::int64_t num_ranks, double limit_s, Call call);
  WeightSender(const WeightSender&) = delete;
  WeightSender& operator=(const WeightSender&) = delete;
  ~WeightSender();

  [[nodiscard]] const SenderPlace& place() const { return place_; }
  // Both begin. state() says when they have ended.
  void join(Call call);
  void send(std::shared_ptr<const WeightImage> image, std::uint64_t bucket_bytes, Call call);
  // cuda_ipc: place().shared has the weights of the image afterwards, until this object goes.
  void share(const std::shared_ptr<const WeightImage>& image, Call call);
  struct State {
    bool is_busy = false;
    std::string failure;
  };
  [[nodiscard]] State state() const;
  // Fails if this process has no such connections.
  static void check(Call call);

 private:
  static mortise_weight_send send_of(std::shared_ptr<const WeightImage> image,
                                     std::vector<mortise_weight_piece>& pieces);

  const mortise_weight_group_vtable* slots_;
  void* group_ = nullptr;
  SenderPlace place_;
};

}  // namespace mortise
