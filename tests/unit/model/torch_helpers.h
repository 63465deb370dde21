// Helpers of the model tests: comparisons that say where they fail, and small random tensors.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <string>

#include "foundation/base/rng.h"

namespace mortise {

// Values of N(0, scale), a function of `seed`.
inline at::Tensor random_tensor(std::vector<int64_t> shape, uint64_t seed, at::ScalarType dtype = at::kDouble,
                                double scale = 1.0) {
  at::Tensor out = at::empty(shape, at::kDouble);
  RandomStream stream({seed, RandomPurpose::kTest, 0, 0, 0});
  double* data = out.mutable_data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) data[i] = stream.next_normal() * scale;
  return out.to(dtype);
}

// max |a - b|; infinite where shapes differ or a value is not finite.
inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return 1e300;
  if (a.numel() == 0) return 0.0;
  const at::Tensor difference = (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs();
  return difference.isfinite().all().item<bool>() ? difference.max().item<double>() : 1e300;
}

// ||a - b|| / ||b||.
inline double relative_l2(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return 1e300;
  const double norm = b.detach().to(at::kDouble).norm().item<double>();
  const double difference = (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).norm().item<double>();
  return norm == 0.0 ? difference : difference / norm;
}

#define EXPECT_CLOSE(a, b, tolerance) EXPECT_LE(::mortise::max_difference((a), (b)), (tolerance)) << #a " and " #b

}  // namespace mortise
