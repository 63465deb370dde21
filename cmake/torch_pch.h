// The precompiled header of every libtorch target: the tensor alone. Loading a precompiled header costs each file time
// by its size: with autograd it is 395 MB and 3.4 s, without 175 MB and 1.2 s. A file still includes what it uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>
