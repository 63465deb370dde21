// Builds trees from other trees.
#pragma once

#include <string_view>

#include "expression.h"

namespace mortise::math {

bool is_literal_fraction(const Node& n);  // a fraction of two whole numbers

// "3" and "\frac{1}{2}", "\frac{1}{2} %", "\frac{1}{2} million": the unit after the fraction applies to the sum. Empty
// if `part` has another form.
NodePtr mixed_number(const NodePtr& whole, const NodePtr& part);

// sign: '+', '-', 'p' (plus or minus), 'm' (minus or plus).
NodePtr with_sign(char sign, NodePtr node);

NodePtr real_line();

// The node times the scale words that `words` begins with: "million people".
NodePtr scaled_by(NodePtr node, std::string_view words);

// The determinant of at most 4 by 4 cells. Throws Unreadable.
NodePtr determinant(const std::vector<NodePtr>& cells, std::size_t size);

}  // namespace mortise::math
