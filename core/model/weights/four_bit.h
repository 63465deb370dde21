// Matrices that bitsandbytes stored in four bits (the base of QLoRA, arXiv 2305.14314), as plain numbers.
//
// The matrix X is stored as several tensors:
//
//   X                        two values to a byte, the first in the high half
//   X.quant_map              the 16 numbers that a half byte encodes (nf4 or fp4)
//   X.absmax                 one scale for each block of `blocksize` values; with double quantisation one byte each
//   X.nested_quant_map, X.nested_absmax   the 256 numbers of such a byte, and their scales
//   X.quant_state.bitsandbytes__nf4       JSON: blocksize, dtype and shape of the matrix, the scales' mean
//
//   value = quant_map[half byte] * scale of its block, in float32, then rounded to the dtype of the matrix
// The values have the bits of bitsandbytes' own dequantize_4bit.
//
// The experts of gpt-oss are stored in MXFP4 (OCP Microscaling Formats 1.0). X [E, in, out] is
//
//   X_blocks [E, out, in / 32, 16]   two values to a byte, the first in the low half: sign, two bits of exponent, one more
//   X_scales [E, out, in / 32]       the exponent of each block of 32 values, plus 127
// Every value is exact in bfloat16 and in float32, if its exponent is not beyond that of the format.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"

namespace mortise {

// Finds a tensor of the folder by its name; null if there is none. Parts of a matrix may lie in several files.
using FindTensor = std::function<const TensorView*(const std::string& name)>;

// Does this tensor describe a matrix in four bits ("X.absmax")?
[[nodiscard]] bool is_four_bit_part(std::string_view name);

// Is `view` a matrix in four bits?
[[nodiscard]] bool is_four_bit(const TensorView& view, const FindTensor& find);

// The matrix, whose shape must be `shape`. Errors name the tensor and `where`, its file.
Result<at::Tensor> read_four_bit(const TensorView& view, at::IntArrayRef shape, const FindTensor& find,
                                 const std::string& where);

// The name of the matrix, if `name` is one of the two parts of one in MXFP4; else empty.
[[nodiscard]] std::string_view mxfp4_matrix(std::string_view name);
[[nodiscard]] bool is_mxfp4_scales(std::string_view name);

// target [E, in, out] = the matrix of `blocks`.
Result<> read_mxfp4(const TensorView& blocks, const FindTensor& find, const std::string& where,
                    const at::Tensor& target);

}  // namespace mortise
