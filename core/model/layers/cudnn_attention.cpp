// See cudnn_attention.h.
#include "model/layers/cudnn_attention.h"

#include <fmt/core.h>

#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/device/cuda_module.h"

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One for the process. Never freed: when the program ends, CUDA may already be gone, and cuDNN's handle needs it.
CudnnAttention* opened = nullptr;  // NOLINT

class CudnnFunction : public torch::autograd::Function<CudnnFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const SegmentLengths& lengths, const AttentionShape& shape, CudnnAttention* cudnn) {
    const auto [out, lse] = cudnn->forward(q, k, v, lengths, shape);
    ctx->save_for_backward({q, k, v, out, lse});
    ctx->saved_data["queries"] = lengths.queries;
    ctx->saved_data["keys"] = lengths.keys;
    ctx->saved_data["window"] = shape.window;
    ctx->saved_data["scale"] = shape.scale;
    ctx->saved_data["cudnn"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(cudnn));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const SegmentLengths lengths{ctx->saved_data["queries"].toIntVector(), ctx->saved_data["keys"].toIntVector()};
    AttentionShape shape{s[0].size(1), s[1].size(1), s[0].size(2), ctx->saved_data["scale"].toDouble()};
    shape.window = ctx->saved_data["window"].toInt();
    auto* const cudnn = reinterpret_cast<CudnnAttention*>(static_cast<intptr_t>(ctx->saved_data["cudnn"].toInt()));
    const auto [dq, dk, dv] = cudnn->backward({s[0], s[1], s[2]}, s[3], s[4], grads[0].contiguous(), lengths, shape);
    return {dq, dk, dv, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Result<CudnnAttention*> open_cudnn_attention() {
  if (opened != nullptr) return opened;
  const auto cannot = [](const std::string& what) {
    return Error{ErrorKind::kConfig, "cuDNN's attention cannot be used: " + what, "",
                 "name a GPU, and build after `./dev deps --cudnn` where cudnn.h and CUDA's headers are"};
  };
  std::string error;
  void* const module = open_cuda_module(kCudnnModule, error);
  if (module == nullptr) return cannot(error);
  const auto entry = reinterpret_cast<CudnnEntry>(dlsym(module, kCudnnEntry));
  if (entry == nullptr) return cannot(fmt::format("{} has no function {}", kCudnnModule, kCudnnEntry));
  opened = entry(&error);
  if (opened == nullptr) return cannot(error);
  return opened;
}

at::Tensor cudnn_segment_attention(CudnnAttention& cudnn, const at::Tensor& q_NHD, const at::Tensor& k_MHD,
                                   const at::Tensor& v_MHD, const SegmentLengths& lengths,
                                   const AttentionShape& shape) {
  return CudnnFunction::apply(q_NHD.contiguous(), k_MHD.contiguous(), v_MHD.contiguous(), lengths, shape, &cudnn);
}

}  // namespace mortise
