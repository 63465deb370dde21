// What ties a pack to a version of libtorch.
#pragma once

#include <string_view>

namespace mortise {

// The tier of a pack that links libtorch: it runs only with the libtorch that it was built with.
inline constexpr std::string_view kTorchLocked = "torch-locked";

}  // namespace mortise
