// See offload_gate.h.
#include "model/layers/offload_gate.h"

namespace mortise {

Result<std::shared_ptr<OffloadGate>> OffloadGate::take(const DecoderWeights& weights, std::shared_ptr<Offload> files) {
  std::vector<std::vector<at::Tensor>> parts;
  parts.push_back({weights.embedding_VH});
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const LayerMatrices m = weights.matrices(layer);
    std::vector<at::Tensor>& part = parts.emplace_back();
    for (const at::Tensor& matrix :
         {m.qkv_QH, m.o_HQ, m.gate_up_2IH, m.down_HI, m.expert_gate_up_E2IH, m.expert_down_EHI}) {
      if (matrix.defined()) part.push_back(matrix);
    }
  }
  parts.push_back({weights.head_VH});
  for (const auto& part : parts) {
    for (const at::Tensor& matrix : part) TRY(files->take(matrix));
  }
  return std::shared_ptr<OffloadGate>(new OffloadGate(std::move(parts), std::move(files)));
}

void OffloadGate::close(int64_t part, GatePass /*pass*/) {
  for (const at::Tensor& matrix : parts_[static_cast<size_t>(part)]) files_->release(matrix);
}

void OffloadGate::run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) {
  if (own) own();
  for (int64_t part = num_parts() - 2; part >= 1; --part) on_layer(part);
}

}  // namespace mortise
