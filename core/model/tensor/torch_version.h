// The libtorch version of this program, with which a torch-locked pack must have been built.
#pragma once

#include <string_view>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#endif

namespace mortise {

// "2.11.0"; empty in a program without libtorch.
#ifdef TORCH_VERSION
inline constexpr std::string_view kTorchVersion = TORCH_VERSION;
#else
inline constexpr std::string_view kTorchVersion;
#endif

}  // namespace mortise
