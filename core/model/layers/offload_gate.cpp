// See offload_gate.h.
#include "model/layers/offload_gate.h"

#include <c10/core/GradMode.h>

#include "model/tensor/storage_memory.h"

namespace mortise {

Result<std::shared_ptr<OffloadGate>> OffloadGate::take(const DecoderWeights& weights, std::shared_ptr<Offload> files) {
  const c10::NoGradGuard no_grad;
  Parts parts;
  parts.push_back({weights.embedding_VH});
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const LayerMatrices m = weights.matrices(layer);
    std::vector<at::Tensor>& part = parts.emplace_back();
    for (const at::Tensor& matrix :
         {m.qkv_QH, m.o_HQ, m.gate_up_2IH, m.down_HI, m.expert_gate_up_E2IH, m.expert_down_EHI}) {
      if (matrix.defined()) part.push_back(matrix);
    }
  }
  parts.push_back({weights.head_VH.is_alias_of(weights.embedding_VH) ? weights.embedding_VH : weights.head_VH});
  for (const auto& part : parts) {
    for (const at::Tensor& matrix : part) TRY(files->take(matrix.detach()));
  }
  const bool is_on_device = !weights.embedding_VH.is_cpu();
  return std::shared_ptr<OffloadGate>(new OffloadGate(std::move(parts), std::move(files), is_on_device));
}

void OffloadGate::open(int64_t part, GatePass /*pass*/) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& matrix : parts_[static_cast<size_t>(part)]) {
    const at::Tensor in_file = files_->numbers_in_file(matrix);
    if (!in_file.defined()) continue;  // it is open, or the host's
    allocate_memory(matrix.storage());
    files_->send(in_file, matrix.variable_data());
  }
}

void OffloadGate::close(int64_t part, GatePass /*pass*/) {
  for (const at::Tensor& matrix : parts_[static_cast<size_t>(part)]) {
    if (is_on_device_)
      free_memory(matrix.storage());
    else
      files_->release(matrix);
  }
}

void OffloadGate::run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) {
  if (own) own();
  for (int64_t part = num_parts() - 2; part >= 1; --part) on_layer(part);
}

}  // namespace mortise
