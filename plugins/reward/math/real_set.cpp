// Sorts and merges intervals, and builds unions, intersections and complements.
#include "real_set.h"

#include <algorithm>
#include <string>
#include <utility>

#include "evaluate.h"
#include "relations.h"

namespace mortise::math {
namespace {

constexpr std::size_t kMaxPieces = 200;

class Reader {
 public:
  Reader(Arithmetic& arithmetic, Budget& budget) : a_(arithmetic), budget_(budget) {}

  std::optional<RealSet> of(const Node& n) {
    budget_.spend(50);
    switch (n.kind) {
      case Kind::kTuple:
        return interval(n);
      case Kind::kSet:
        return points(n);
      case Kind::kRelation:
        return fulfilling(n);
      case Kind::kUnion:
        return folded(n, &Reader::unite);
      case Kind::kIntersection:
        return folded(n, &Reader::intersect);
      case Kind::kDifference:
        return folded(n, &Reader::subtract);
      case Kind::kList:
        return listed(n);
      default:
        return {};
    }
  }

  int compare(const End& x, const End& y) {
    budget_.spend(20);
    if (x.infinity != 0 || y.infinity != 0) return x.infinity - y.infinity;
    if (a_.equal(x.value, y.value)) return 0;
    return a_.less(x.value, y.value) ? -1 : 1;
  }

 private:
  std::optional<End> end_of(const Node& n) {
    if (n.kind == Kind::kInfinity) return End{1, {}};
    if (n.kind == Kind::kNegate && n.args[0]->kind == Kind::kInfinity) return End{-1, {}};
    if (!is_scalar(n) || contains(n, Kind::kSymbol) || contains(n, Kind::kPlusMinus)) return {};
    Value value = evaluate(n, 0, true, a_);
    if (!is_real(value)) return {};
    return End{0, std::move(value)};
  }

  std::optional<RealSet> interval(const Node& n) {
    if (n.args.size() != 2) return {};
    auto low = end_of(*n.args[0]), high = end_of(*n.args[1]);
    if (!low || !high) return {};
    const bool low_closed = n.text[0] == '[' && low->infinity == 0,
               high_closed = n.text[1] == ']' && high->infinity == 0;
    return in_order({{std::move(*low), std::move(*high), low_closed, high_closed}});
  }

  std::optional<RealSet> points(const Node& n) {
    RealSet out;
    for (const NodePtr& arg : n.args) {
      const auto at = end_of(*arg);
      if (!at || at->infinity != 0) return {};
      out.push_back({*at, *at, true, true});
    }
    return in_order(std::move(out));
  }

  std::optional<RealSet> fulfilling(const Node& n) {
    if (n.text == "i") return of(*n.args[1]);
    if (n.text == "=" || n.text == "n") {
      const bool named = n.args[0]->kind == Kind::kSymbol;
      if (!named && n.args[1]->kind != Kind::kSymbol) return {};
      auto point = points(*make(Kind::kSet, {n.args[named ? 1 : 0]}));
      return point && n.text == "n" ? complement(*point) : point;
    }
    const NodePtr as_tuple = as_interval(n);
    return as_tuple == nullptr ? std::nullopt : interval(*as_tuple);
  }

  std::optional<RealSet> folded(const Node& n, RealSet (Reader::*operation)(const RealSet&, const RealSet&)) {
    std::optional<RealSet> out = of(*n.args[0]);
    for (std::size_t i = 1; out && i < n.args.size(); ++i) {
      const std::optional<RealSet> next = of(*n.args[i]);
      if (!next) return {};
      out = (this->*operation)(*out, *next);
    }
    return out;
  }

  static const std::string* name_of(const Node& relation) {
    for (const NodePtr& side : relation.args)
      if (side->kind == Kind::kSymbol) return &side->text;
    return nullptr;
  }

  std::optional<RealSet> listed(const Node& n) {
    const std::string* name = nullptr;
    for (const NodePtr& arg : n.args) {
      const std::string* const own = arg->kind == Kind::kRelation ? name_of(*arg) : nullptr;
      if (own == nullptr || (name != nullptr && *name != *own)) return {};
      name = own;
    }
    auto all = folded(n, &Reader::intersect);
    return all && all->empty() ? folded(n, &Reader::unite) : all;
  }

  // Sorted, without empty pieces, those that touch joined.
  RealSet in_order(RealSet pieces) {
    if (pieces.size() > kMaxPieces) throw Undefined("too many intervals");
    const auto is_empty = [&](const Piece& p) {
      const int order = compare(p.low, p.high);
      return order > 0 || (order == 0 && !(p.low_closed && p.high_closed));
    };
    pieces.erase(std::remove_if(pieces.begin(), pieces.end(), is_empty), pieces.end());
    std::sort(pieces.begin(), pieces.end(), [&](const Piece& x, const Piece& y) {
      const int order = compare(x.low, y.low);
      return order < 0 || (order == 0 && x.low_closed && !y.low_closed);
    });
    RealSet out;
    for (Piece& piece : pieces) {
      const int gap = out.empty() ? 1 : compare(piece.low, out.back().high);
      if (gap > 0 || (gap == 0 && !piece.low_closed && !out.back().high_closed)) {
        out.push_back(std::move(piece));
        continue;
      }
      const int order = compare(piece.high, out.back().high);
      if (order == 0) out.back().high_closed = out.back().high_closed || piece.high_closed;
      if (order <= 0) continue;
      out.back().high = std::move(piece.high);
      out.back().high_closed = piece.high_closed;
    }
    return out;
  }

  static RealSet complement(const RealSet& set) {
    RealSet out;
    End low{-1, {}};
    bool closed = false;
    for (const Piece& piece : set) {
      if (piece.low.infinity == 0) out.push_back({low, piece.low, closed, !piece.low_closed});
      low = piece.high;
      closed = !piece.high_closed && piece.high.infinity == 0;
    }
    if (low.infinity <= 0) out.push_back({low, End{1, {}}, closed, false});
    return out;
  }
  RealSet unite(const RealSet& x, const RealSet& y) {
    RealSet both = x;
    both.insert(both.end(), y.begin(), y.end());
    return in_order(std::move(both));
  }
  RealSet intersect(const RealSet& x, const RealSet& y) { return complement(unite(complement(x), complement(y))); }
  RealSet subtract(const RealSet& x, const RealSet& y) { return complement(unite(complement(x), y)); }

  Arithmetic& a_;
  Budget& budget_;
};

}  // namespace

std::optional<RealSet> real_set_of(const Node& node, Arithmetic& arithmetic, Budget& budget) {
  return Reader(arithmetic, budget).of(node);
}

bool same_sets(const RealSet& a, const RealSet& b, Arithmetic& arithmetic) {
  const auto same_ends = [&](const End& x, const End& y) {
    if (x.infinity != 0 || y.infinity != 0) return x.infinity == y.infinity;
    return arithmetic.equal(x.value, y.value);
  };
  const auto same_pieces = [&](const Piece& x, const Piece& y) {
    return x.low_closed == y.low_closed && x.high_closed == y.high_closed && same_ends(x.low, y.low) &&
           same_ends(x.high, y.high);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_pieces);
}

}  // namespace mortise::math
