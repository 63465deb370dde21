// One value into one field: type, range, choices.
//
// Private to this room. Pure function.
#pragma once

#include "config/config_node.h"
#include "config/fields.h"

namespace mortise {

// On success `ref` holds the value; otherwise it is unchanged. The Error has the node's place.
Result<> assign_value(const Field& field, const FieldRef& ref, const ConfigNode& node);

}  // namespace mortise
