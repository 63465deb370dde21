// Isolation: whether plugins run in worker processes (plugins.isolation for rewards, and the keys of losses and
// estimators).
#pragma once

#include <array>
#include <string_view>

namespace mortise {

enum class Isolation { kAuto, kProcess, kNone };
constexpr auto choice_names(Isolation) { return std::array<std::string_view, 3>{"auto", "process", "none"}; }

}  // namespace mortise
