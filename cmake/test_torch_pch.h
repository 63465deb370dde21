// torch_pch.h and the operators of libtorch that tests use, for test programs. Any of them reads the same large headers
// (ATen/Context.h, IListRef.h). clang loads only the used parts of a precompiled header, so its size costs nothing there.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "torch_pch.h"
