// See offload_gate.h.
#include "model/layers/offload_gate.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "model/tensor/storage_memory.h"

namespace mortise {

Result<std::shared_ptr<OffloadGate>> OffloadGate::take(const DecoderWeights& weights, std::shared_ptr<Offload> files) {
  const c10::NoGradGuard no_grad;
  Parts parts;
  parts.push_back({{weights.embedding_VH}});
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const LayerMatrices m = weights.matrices(layer);
    std::vector<Matrix>& part = parts.emplace_back();
    for (const at::Tensor& matrix :
         {m.qkv_QH, m.o_HQ, m.gate_up_2IH, m.down_HI, m.expert_gate_up_E2IH, m.expert_down_EHI}) {
      if (matrix.defined()) part.push_back({matrix});
    }
  }
  for (auto& part : parts) {
    for (Matrix& matrix : part) TRY(take(matrix, *files));
  }
  const bool is_tied = weights.head_VH.is_alias_of(weights.embedding_VH);
  std::vector<Matrix>& head = parts.emplace_back();
  head.push_back(is_tied ? parts.front().front() : Matrix{weights.head_VH});
  if (!is_tied) TRY(take(head.front(), *files));
  const bool is_on_device = !weights.embedding_VH.is_cpu();
  return std::shared_ptr<OffloadGate>(new OffloadGate(std::move(parts), std::move(files), is_on_device));
}

// A device's matrix loses its memory until its part is opened.
Result<> OffloadGate::take(Matrix& matrix, Offload& files) {
  const at::Tensor numbers = matrix.numbers.detach();
  if (numbers.is_cpu()) return files.take(numbers);
  TORCH_CHECK(numbers.is_contiguous() && numbers.storage().nbytes() == numbers.nbytes(),
              "a matrix that goes to a file is a view of other numbers");
  matrix.in_file = TRY(files.zeros(numbers.sizes(), numbers.options().device(at::kCPU)));
  matrix.in_file.copy_(numbers);
  files.release(matrix.in_file);
  free_memory(numbers.storage());
  return {};
}

// The copy comes from pages of a file, so that the host waits for it.
void OffloadGate::open(int64_t part, GatePass /*pass*/) {
  const c10::NoGradGuard no_grad;
  for (const Matrix& matrix : parts_[static_cast<size_t>(part)]) {
    if (!matrix.in_file.defined() || has_memory(matrix.numbers)) continue;
    allocate_memory(matrix.numbers.storage());
    matrix.numbers.variable_data().copy_(matrix.in_file);
    files_->release(matrix.in_file);
  }
}

void OffloadGate::close(int64_t part, GatePass /*pass*/) {
  for (const Matrix& matrix : parts_[static_cast<size_t>(part)]) {
    if (matrix.in_file.defined())
      free_memory(matrix.numbers.storage());
    else
      files_->release(matrix.numbers);
  }
}

at::Tensor OffloadGate::numbers_in_file(const at::Tensor& tensor) const {
  for (const auto& part : parts_) {
    for (const auto& [numbers, in_file] : part) {
      if (in_file.defined() && numbers.is_alias_of(tensor))
        return in_file.view({-1}).narrow(0, tensor.storage_offset(), tensor.numel()).view(tensor.sizes());
    }
  }
  return {};
}

void OffloadGate::run_backward(const std::function<void()>& own, const std::function<void(int64_t part)>& on_layer) {
  if (own) own();
  for (int64_t part = num_parts() - 2; part >= 1; --part) on_layer(part);
}

}  // namespace mortise
