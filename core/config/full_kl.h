// The value of actor.kl_loss_type that names no plugin: the KL over the whole vocabulary, which is the engine's own.
#pragma once

#include <string_view>

namespace mortise {

inline constexpr std::string_view kFullKl = "full";

}  // namespace mortise
