// The value of actor.kl_loss_type that is not a plugin: the KL over the whole vocabulary, which the engine computes.
#pragma once

#include <string_view>

namespace mortise {

inline constexpr std::string_view kFullKl = "full";

}  // namespace mortise
