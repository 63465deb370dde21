// Reads the value of an equation and the interval of an inequality from a tree.
#include "relations.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scan.h"

namespace mortise::math {
namespace {

bool is_symbol(const NodePtr& n) { return n->kind == Kind::kSymbol; }

bool starts_with(const Node& n, std::string_view symbol) {
  return n.kind == Kind::kMultiply && is_symbol(n.args[0]) && n.args[0]->text == symbol;
}

// "dy/dx", the "d/dx" of "d/dx f(x)"
bool is_derivative(const Node& n) {
  if (n.kind != Kind::kDivide || !starts_with(*n.args[1], "d")) return false;
  return starts_with(*n.args[0], "d") || (is_symbol(n.args[0]) && n.args[0]->text == "d");
}

// The left side of a value: "x", "AB", "f(x)", "P(x, y)", "f(2)", "(x, y)", "dy/dx".
bool is_name(const Node& n) {
  if (n.kind == Kind::kSymbol || n.kind == Kind::kEuler || n.kind == Kind::kImaginary) return true;
  if (n.kind == Kind::kTuple) return !n.args.empty() && std::all_of(n.args.begin(), n.args.end(), is_symbol);
  if (is_derivative(n)) return true;
  if (n.kind != Kind::kMultiply) return false;
  const NodePtr& head = n.args[0]->kind == Kind::kPower ? n.args[0]->args[0] : n.args[0];  // "f^{-1}(x)"
  if (!is_symbol(head)) return is_derivative(*n.args[0]);
  if (std::all_of(n.args.begin(), n.args.end(), is_symbol)) return true;
  const bool is_function = is_one_of(head->text.substr(0, 1), {"f", "g", "h", "p", "q", "A", "C", "E", "F", "G", "H",
                                                               "L", "N", "P", "Q", "S", "T", "V"});
  return n.args.size() == 2 && (is_function || n.args[1]->kind == Kind::kTuple);
}

}  // namespace

NodePtr given_value(const Node& n) {
  const bool gives = n.text.find_first_not_of("=~") == std::string::npos || n.text == "i";
  if (!gives) return nullptr;
  const auto is_constant = [](const NodePtr& side) { return is_scalar(*side) && !contains(*side, Kind::kSymbol); };
  if (is_name(*n.args.front()) || std::all_of(n.args.begin(), n.args.end(), is_constant)) return n.args.back();
  if (n.args.size() == 2 && n.text == "=" && is_name(*n.args.back())) return n.args.front();  // 42 = x
  return nullptr;
}

std::vector<NodePtr> given_values(const std::vector<NodePtr>& items) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_equation = [](const NodePtr& n) { return n->kind == Kind::kRelation && is_symbol(n->args[0]); };
  if (std::all_of(items.begin(), items.end(), is_equation)) {
    const auto name = [&](std::size_t i) -> const std::string& { return items[i]->args[0]->text; };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return name(a) < name(b); });
  }
  std::vector<NodePtr> out;
  for (const std::size_t i : order) {
    NodePtr value = items[i]->kind == Kind::kRelation ? given_value(*items[i]) : nullptr;
    out.push_back(value != nullptr ? std::move(value) : items[i]);
  }
  return out;
}

Node turned_around(const Node& n) {
  Node out = n;
  std::reverse(out.args.begin(), out.args.end());
  std::reverse(out.text.begin(), out.text.end());
  for (char& c : out.text) c = c == '<' ? '>' : c == '>' ? '<' : c == 'l' ? 'g' : c == 'g' ? 'l' : c;
  return out;
}

NodePtr as_interval(const Node& n) {
  if (n.text.find_first_not_of("<>lg") != std::string::npos || n.text.size() > 2) return nullptr;
  const auto is_up = [](char c) { return c == '<' || c == 'l'; };
  const Node turned = is_up(n.text[0]) ? n : turned_around(n);
  const std::vector<NodePtr>& sides = turned.args;
  const std::string& operators = turned.text;
  if (!std::all_of(operators.begin(), operators.end(), is_up)) return nullptr;
  const auto closed = [](char c) { return c == 'l'; };
  const NodePtr infinity = make(Kind::kInfinity);
  if (sides.size() == 3) {
    if (sides[1]->kind != Kind::kSymbol) return nullptr;
    const std::string brackets{closed(operators[0]) ? '[' : '(', closed(operators[1]) ? ']' : ')'};
    return make(Kind::kTuple, {sides[0], sides[2]}, brackets);
  }
  if (sides[0]->kind == Kind::kSymbol) {
    const std::string brackets{'(', closed(operators[0]) ? ']' : ')'};
    return make(Kind::kTuple, {make(Kind::kNegate, {infinity}), sides[1]}, brackets);
  }
  if (sides[1]->kind != Kind::kSymbol) return nullptr;
  const std::string brackets{closed(operators[0]) ? '[' : '(', ')'};
  return make(Kind::kTuple, {sides[0], infinity}, brackets);
}

Node upwards(const Node& n) { return n.text == ">" || n.text == "g" ? turned_around(n) : n; }

}  // namespace mortise::math
