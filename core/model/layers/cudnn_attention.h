// cuDNN's fused attention for training on a GPU: bfloat16, sequences that lie end to end, windows, and a backward that adds in
// a fixed order. libtorch's own call of cuDNN has neither windows nor that backward. attention_choice.h says where a run
// takes it.
//
// cudnn-frontend makes it in libmortise_cudnn.so, from lib/mortise. cuDNN itself is in the process with libtorch's CUDA half.
// cuDNN plans an operation for sizes, which takes 0.1 s; sizes are therefore rounded up to powers of two, and plans are kept.
// Sequences that only fill up have no tokens.
// Thread rule: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/result.h"
#include "model/layers/segment_attention.h"

namespace mortise {

// What cuDNN plans for.
struct CudnnSizes {
  int64_t sequences = 0, most_queries = 0, most_keys = 0;  // most_*: of a sequence
  int64_t num_queries = 0, num_keys = 0;                   // all sequences together
  int64_t heads = 0, kv_heads = 0, dim = 0;
  int64_t window = 0;  // as AttentionShape
  double scale = 0;
  auto operator<=>(const CudnnSizes&) const = default;
};
inline CudnnSizes cudnn_sizes(const SegmentLengths& lengths, const AttentionShape& shape) {
  constexpr int64_t kLeastTokens = 128;  // a tile of cuDNN's kernels
  const auto rounded_up = [](int64_t count, int64_t least) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(count, least))));
  };
  const auto most = [&](const std::vector<int64_t>& of) {
    return rounded_up(*std::ranges::max_element(of), kLeastTokens);
  };
  const auto all = [&](const std::vector<int64_t>& of) {
    return rounded_up(std::accumulate(of.begin(), of.end(), int64_t{0}), kLeastTokens);
  };
  CudnnSizes out{rounded_up(static_cast<int64_t>(lengths.queries.size()), 1),
                 most(lengths.queries),
                 most(lengths.keys),
                 all(lengths.queries),
                 all(lengths.keys),
                 shape.num_heads,
                 shape.num_kv_heads,
                 shape.head_dim,
                 shape.window,
                 shape.scale};
  if (out.window >= out.most_keys) out.window = 0;  // no key is outside
  return out;
}

// Where each sequence begins, in numbers of the tensor that has `width` of them for a token: [sequences + 1]. Sequences that
// only fill up begin at the end.
inline std::vector<int64_t> cudnn_offsets(const std::vector<int64_t>& lengths, int64_t sequences, int64_t width) {
  std::vector<int64_t> out{0};
  for (const int64_t length : lengths) out.push_back(out.back() + length * width);
  out.resize(static_cast<size_t>(sequences) + 1, out.back());
  return out;
}

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  // q [Nq, Hq, D], k and v [Nk, Hk, D], bfloat16 and contiguous -> [Nq, Hq, D], and log-sum-exp [Nq, Hq] in float32.
  virtual std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const SegmentLengths& lengths, const AttentionShape& shape) = 0;
  // The gradients of q, k and v.
  virtual std::array<at::Tensor, 3> backward(const std::array<at::Tensor, 3>& qkv, const at::Tensor& out,
                                             const at::Tensor& lse, const at::Tensor& d_out,
                                             const SegmentLengths& lengths, const AttentionShape& shape) = 0;
  // For tests: why cuDNN cannot compute both on a GPU with these properties (cuDNN's JSON), without one. Empty: it can.
  virtual std::string why_not(const CudnnSizes& sizes, const std::string& properties, int compute_capability) = 0;
};

inline constexpr const char* kCudnnModule = "libmortise_cudnn.so";
inline constexpr const char* kCudnnEntry = "mortise_cudnn_attention";
// The caller owns the result; null if cuDNN is not in the process, and `error` says so.
using CudnnEntry = CudnnAttention* (*)(std::string* error);

// Loads the module from lib/mortise. The result lives as long as the process. An error of kind config says what is missing.
Result<CudnnAttention*> open_cudnn_attention();

// As segment_attention(), by cuDNN, with gradients. For bfloat16 tensors. `cudnn` must outlive backward.
at::Tensor cudnn_segment_attention(CudnnAttention& cudnn, const at::Tensor& q_NHD, const at::Tensor& k_MHD,
                                   const at::Tensor& v_MHD, const SegmentLengths& lengths, const AttentionShape& shape);

// Whether cuDNN takes the shape: no caps and no sinks, and heads of at most 128 numbers.
[[nodiscard]] inline bool has_cudnn_attention(const AttentionShape& shape) {
  constexpr int64_t kMostHeadDim = 128;  // backward has no larger ones on sm_100
  return shape.softcap == 0.0 && !shape.sinks_A.defined() && shape.head_dim % 8 == 0 && shape.head_dim <= kMostHeadDim;
}

}  // namespace mortise
