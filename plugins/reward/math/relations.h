// The values and intervals that equations and inequalities give.
#pragma once

#include <vector>

#include "expression.h"

namespace mortise::math {

// The value that the relation gives its name: the last side of "x = 84/2 = 42", of "40 + 2 = 42", of "x \in [0, 5)", of
// "f(2) = 5". Empty if it gives none.
NodePtr given_value(const Node& relation);

// "x = 1, y = 2" as 1, 2, in the order of the names; other members do not change.
std::vector<NodePtr> given_values(const std::vector<NodePtr>& items);

// "x > 3", "0 <= x < 5" as an interval; empty if it is not one.
NodePtr as_interval(const Node& relation);

// Read from right to left.
Node turned_around(const Node& relation);
Node upwards(const Node& relation);  // > and >= turned

}  // namespace mortise::math
