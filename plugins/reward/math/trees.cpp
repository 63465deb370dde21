// Builds trees for mixed numbers, signs, scales and determinants.
#include "trees.h"

#include <utility>

#include "lexer.h"
#include "parse/text.h"
#include "vocabulary.h"

namespace mortise::math {

bool is_literal_fraction(const Node& n) {
  return n.kind == Kind::kDivide && n.args[0]->kind == Kind::kNumber && n.args[1]->kind == Kind::kNumber &&
         !n.args[0]->decimal && !n.args[1]->decimal;
}

NodePtr mixed_number(const NodePtr& whole, const NodePtr& part) {
  if (is_literal_fraction(*part)) return make(Kind::kAdd, {whole, part});
  if (part->kind != Kind::kPercent && part->kind != Kind::kDegrees && part->kind != Kind::kScaled) return nullptr;
  NodePtr sum = mixed_number(whole, part->args[0]);
  if (sum == nullptr) return nullptr;
  auto out = std::make_shared<Node>(*part);
  out->args = {std::move(sum)};
  return out;
}

NodePtr with_sign(char sign, NodePtr node) {
  if (sign == '+') return node;
  if (sign == '-') return make(Kind::kNegate, {std::move(node)});
  return make(Kind::kPlusMinus, {std::move(node)}, sign == 'p' ? "+" : "-");
}

NodePtr real_line() {
  const NodePtr infinity = make(Kind::kInfinity);
  return make(Kind::kTuple, {make(Kind::kNegate, {infinity}), infinity}, "()");
}

NodePtr scaled_by(NodePtr node, std::string_view words) {
  mpq_class times = 1;
  while (true) {
    words = parse::trim(words);
    const std::string_view word = words.substr(0, words.find(' '));
    if (scale_of(word) == 0) break;
    times *= scale_of(word);
    words.remove_prefix(word.size());
  }
  if (times == 1) return node;
  auto out = std::make_shared<Node>();
  out->kind = Kind::kScaled;
  out->number = node->kind == Kind::kScaled ? mpq_class(times * node->number) : times;
  out->args = {node->kind == Kind::kScaled ? node->args[0] : std::move(node)};
  return out;
}

// By its first row.
NodePtr determinant(const std::vector<NodePtr>& cells, std::size_t size) {
  if (size == 0 || size > 4 || cells.size() != size * size) throw Unreadable("a determinant");
  if (size == 1) return cells[0];
  std::vector<NodePtr> terms;
  for (std::size_t column = 0; column < size; ++column) {
    std::vector<NodePtr> minor;
    for (std::size_t k = size; k < cells.size(); ++k)
      if (k % size != column) minor.push_back(cells[k]);
    const NodePtr term = make(Kind::kMultiply, {cells[column], determinant(minor, size - 1)});
    terms.push_back(with_sign(column % 2 == 0 ? '+' : '-', term));
  }
  return make(Kind::kAdd, std::move(terms));
}

}  // namespace mortise::math
