// OffloadGate: a gate for a frozen model whose matrices lie in files (tensor/offload.h). Closing a part gives its pages
// back, so that a pass has the pages of one part at a time. Vectors stay in memory.
//
// On a device, a part's matrices have memory there while it is open: opening copies them from the files.
// Thread rule: as WeightGate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "model/layers/decoder_weights.h"
#include "model/layers/weight_gate.h"
#include "model/tensor/offload.h"

namespace mortise {

class OffloadGate : public WeightGate {
 public:
  // Moves the matrices of `weights` into the files.
  static Result<std::shared_ptr<OffloadGate>> take(const DecoderWeights& weights, std::shared_ptr<Offload> files);

  void open(int64_t part, GatePass pass) override;
  void close(int64_t part, GatePass pass) override;
  void finish_forward() override { close(num_parts() - 1, GatePass::kForward); }
  void run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) override;
  [[nodiscard]] bool is_whole() const override { return !is_on_device_; }
  [[nodiscard]] Result<> status() const override { return {}; }

 private:
  using Parts = std::vector<std::vector<at::Tensor>>;
  OffloadGate(Parts parts, std::shared_ptr<Offload> files, bool is_on_device)
      : parts_(std::move(parts)), files_(std::move(files)), is_on_device_(is_on_device) {}
  [[nodiscard]] int64_t num_parts() const { return static_cast<int64_t>(parts_.size()); }

  Parts parts_;  // embedding, layers, head
  std::shared_ptr<Offload> files_;
  bool is_on_device_;
};

}  // namespace mortise
