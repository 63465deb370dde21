// OffloadGate: a gate for a frozen model whose matrices lie in files (tensor/offload.h). Closing a part gives its pages
// back, so that a pass has the pages of one part at a time. Vectors stay in memory.
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

  void open(int64_t /*part*/, GatePass /*pass*/) override {}
  void close(int64_t part, GatePass pass) override;
  void finish_forward() override { close(num_parts() - 1, GatePass::kForward); }
  void run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) override;
  [[nodiscard]] bool is_whole() const override { return true; }
  [[nodiscard]] Result<> status() const override { return {}; }

 private:
  OffloadGate(std::vector<std::vector<at::Tensor>> parts, std::shared_ptr<Offload> files)
      : parts_(std::move(parts)), files_(std::move(files)) {}
  [[nodiscard]] int64_t num_parts() const { return static_cast<int64_t>(parts_.size()); }

  std::vector<std::vector<at::Tensor>> parts_;  // embedding, layers, head
  std::shared_ptr<Offload> files_;
};

}  // namespace mortise
