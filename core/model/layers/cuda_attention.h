// Fused attention on CUDA: libtorch's _flash_attention_* for bfloat16 and _efficient_attention_* for float32. This file and
// bf16_product.cpp have the only operators of a device run that the CPU lacks, so no test without a GPU computes them.
// Thread rule: as libtorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layers/segment_attention.h"

namespace mortise {

// Can the operators compute attention for these queries? They support no caps, no sinks and no float64. Queries in bfloat16
// are for attention that rounds.
bool has_cuda_attention(const at::Tensor& q_NHD, const AttentionShape& shape);

// As segment_attention(), for tensors of one dtype.
at::Tensor cuda_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                          const SegmentLengths& lengths, const AttentionShape& shape);

}  // namespace mortise
