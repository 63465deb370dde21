// The hint of an error for a name that is not known: the nearest names, or all of them. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "foundation/base/text.h"

namespace mortise {

// "use one of: a, b"; empty if there are none.
inline std::string use_one_of(std::span<const std::string> names) {
  return names.empty() ? "" : "use one of: " + join(names, ", ");
}

// "did you mean 'a'?" if a name is near, else use_one_of().
inline std::string suggest(std::string_view name, std::span<const std::string> names) {
  std::string near = did_you_mean(name, names);
  return near.empty() ? use_one_of(names) : near;
}

}  // namespace mortise
