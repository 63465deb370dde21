// What the clipped losses share.
#pragma once

#include <mortise/cpp/plugin.hpp>

namespace mortise {

// verl's rule for clip_ratio_low and clip_ratio_high: not set means clip_ratio.
inline double first_set(double value, double fallback) { return is_set(value) ? value : fallback; }

}  // namespace mortise
