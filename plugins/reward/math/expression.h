// What an answer says, as a tree.
#pragma once

#include <gmpxx.h>

#include <memory>
#include <string>
#include <vector>

namespace mortise::math {

enum class Kind {
  // Numbers.
  kNumber,  // number; decimal: written with a point
  kSymbol,  // text: its name, subscript and all
  kPi,
  kEuler,
  kImaginary,
  kInfinity,
  kAdd,       // args
  kMultiply,  // args
  kNegate,
  kDivide,    // args[0] / args[1]
  kPower,     // args[0] ^ args[1]
  kRoot,      // args[1]-th root of args[0]
  kLog,       // log of args[0] to the base args[1]
  kFunction,  // text(args[0])
  kFactorial,
  kAbsolute,
  kFloor,
  kCeiling,
  kBinomial,  // args[0] over args[1]
  kPercent,
  kDegrees,
  kScaled,     // args[0] times number: "5 million"
  kOfSeveral,  // text(args): gcd, lcm, max, min
  kModulo,     // args[0] modulo args[1]; text "class": \pmod
  kPlusMinus,  // +- args[0]; text "-": the other sign first
  // All else.
  kWord,   // text, in lower case
  kBased,  // text: digits, "_", base
  kTuple,  // args; text: the two brackets
  kSet,    // args, in any order
  kList,   // args, separated by bare commas
  kUnion,  // args
  kIntersection,
  kDifference,
  kRelation,  // args; text: the operators between them, one character each: = < > l (<=) g (>=) n (!=) i (in) ~
  kMatrix,    // args by rows; columns
  kRatio,     // args
};

struct Node;
using NodePtr = std::shared_ptr<const Node>;

struct Node {
  Kind kind;
  std::string text;
  mpq_class number;
  bool decimal = false;
  std::vector<NodePtr> args;
  std::size_t columns = 0;
};

inline NodePtr make(Kind kind, std::vector<NodePtr> args = {}, std::string text = "") {
  auto node = std::make_shared<Node>();
  node->kind = kind;
  node->args = std::move(args);
  node->text = std::move(text);
  return node;
}

inline NodePtr make_number(mpq_class number, bool decimal = false) {
  auto node = std::make_shared<Node>();
  node->kind = Kind::kNumber;
  node->number = std::move(number);
  node->decimal = decimal;
  return node;
}

inline bool contains(const Node& n, Kind kind) {
  if (n.kind == kind) return true;
  for (const NodePtr& arg : n.args)
    if (contains(*arg, kind)) return true;
  return false;
}

// Is it one number, maybe with symbols in it?
inline bool is_scalar(const Node& n) {
  if (n.kind >= Kind::kWord) return false;
  for (const NodePtr& arg : n.args)
    if (!is_scalar(*arg)) return false;
  return true;
}

}  // namespace mortise::math
