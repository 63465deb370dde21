// The two files that hold a StateSnapshot, private to this room.
//
//   state.json         {"object": {"key": value}, ...}: true, "i:-5", "u:5", "d:0.1", "t:text"; every object is listed,
//                      also one without scalars. Numbers are texts, since JSON has no NaN and mixes int and float.
//   state.safetensors  the tensors, named "object/key"
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "foundation/base/stateful.h"

namespace mortise {

inline constexpr std::string_view kStateJsonFile = "state.json";
inline constexpr std::string_view kStateTensorsFile = "state.safetensors";

[[nodiscard]] std::string state_json_text(const StateSnapshot& snapshot);
// Scalars from the text, tensors as given (views are kept, sorted by name).
Result<StateSnapshot> parse_state(std::string_view json_text, std::span<const TensorView> tensors,
                                  std::string_view where);

}  // namespace mortise
