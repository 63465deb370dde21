// What the form of a tree says about its meaning: a decimal, a time, a matrix times a number. Private to this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "expression.h"

namespace mortise::math {

// A number as written: a decimal, with a sign, with %.
inline bool is_decimal(const Node& n) {
  const bool is_wrapped =
      n.kind == Kind::kNegate || n.kind == Kind::kPercent || n.kind == Kind::kDegrees || n.kind == Kind::kScaled;
  if (is_wrapped) return is_decimal(*n.args[0]);
  return n.kind == Kind::kNumber && n.decimal;
}

// What a number is worth if its unit is not given: "25%" may mean 25, "5 dozen" 5.
inline mpq_class unit_of(const Node& n) {
  if (n.kind == Kind::kNegate) return unit_of(*n.args[0]);
  if (n.kind == Kind::kPercent) return mpq_class(1, 100);
  return n.kind == Kind::kScaled && n.number == 12 ? 12 : 1;
}

// "P(1, 2)" names the point.
inline const Node& unnamed(const Node& n) {
  const bool is_named = n.kind == Kind::kMultiply && n.args.size() == 2 && n.args[0]->kind == Kind::kSymbol &&
                        n.args[1]->kind == Kind::kTuple;
  return is_named ? *n.args[1] : n;
}

inline bool is_set_operation(const Node& n) {
  return n.kind == Kind::kUnion || n.kind == Kind::kIntersection || n.kind == Kind::kDifference;
}

// A product with one matrix in it as a matrix.
inline NodePtr as_matrix(const Node& n) {
  const auto is_matrix = [](const NodePtr& arg) { return arg->kind == Kind::kMatrix; };
  if (n.kind == Kind::kMatrix) return std::make_shared<Node>(n);
  if (n.kind != Kind::kMultiply && n.kind != Kind::kNegate) return nullptr;
  if (std::count_if(n.args.begin(), n.args.end(), is_matrix) != 1) return nullptr;
  const auto at = std::find_if(n.args.begin(), n.args.end(), is_matrix) - n.args.begin();
  auto out = std::make_shared<Node>(*n.args[std::size_t(at)]);
  for (NodePtr& cell : out->args) {
    std::vector<NodePtr> factors = n.args;
    factors[std::size_t(at)] = cell;
    cell = make(n.kind, std::move(factors));
  }
  return out;
}

// "3:30" is a time and no ratio.
inline bool is_time(const Node& n) {
  const Node& minutes = *n.args.back();
  return minutes.kind == Kind::kNumber && minutes.number >= 10 && minutes.number < 60;
}

// 1 or -1 for an infinity.
inline int infinity_sign(const Node& n) {
  if (n.kind == Kind::kInfinity) return 1;
  return n.kind == Kind::kNegate ? -infinity_sign(*n.args[0]) : 0;
}

}  // namespace mortise::math
