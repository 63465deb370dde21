// A tensor of a golden model's file.
#pragma once

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <string>

#include "foundation/formats/safetensors.h"

namespace mortise {

inline at::Tensor stored_tensor(const SafetensorsFile& file, const std::string& name) {
  auto view = file.get(name);
  EXPECT_TRUE(view.ok()) << view.error().to_string();
  auto* bytes = const_cast<std::byte*>(view->bytes.data());
  return at::from_blob(bytes, view->shape,
                       at::TensorOptions().dtype(view->dtype == DType::kI64 ? at::kLong : at::kFloat))
      .clone();
}

}  // namespace mortise
