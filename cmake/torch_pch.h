// The precompiled header of every libtorch target: what nearly all of their files include. Single operators
// (ATen/ops/NAME.h) belong to the file that calls them.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>
