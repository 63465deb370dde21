// Control: whether a coefficient is fixed or adaptive, for [algorithm.kl_ctrl] and [actor.entropy_ctrl].
#pragma once

#include <array>
#include <string_view>

namespace mortise {

enum class Control { kFixed, kAdaptive };
constexpr auto choice_names(Control) { return std::array<std::string_view, 2>{"fixed", "adaptive"}; }

}  // namespace mortise
