// The words of --resume that are no path of a checkpoint.
#pragma once

#include <string_view>

namespace mortise {

inline constexpr std::string_view kResumeAuto = "auto";    // from the run's newest checkpoint, if it has one
inline constexpr std::string_view kResumeNever = "never";  // start over

}  // namespace mortise
