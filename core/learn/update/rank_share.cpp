// Deals micro-batches to ranks, and exchanges their results.
#include "learn/update/rank_share.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "dist/one_process.h"
#include "foundation/base/hints.h"
#include "learn/update/owner_trees.h"
#include "plugin/worker/channel.h"

namespace mortise {

Communicator& alone() {
  static const std::unique_ptr<Communicator> communicator = one_process_communicator();
  return *communicator;
}

std::vector<int64_t> micro_tokens(const StepTable& table, const MicroPlan& plan) {
  std::vector<int64_t> tokens;
  for (const std::vector<int64_t>& micro : plan) {
    int64_t sum = 0, group = -1;
    for (const int64_t row : micro) {
      if (table.row(row).group != group) sum += static_cast<int64_t>(table.row(row).prompt_ids.size());
      group = table.row(row).group;
      sum += table.row_tokens(row);
    }
    tokens.push_back(sum);
  }
  return tokens;
}

std::vector<int> deal_by_load(std::span<const int64_t> loads, int num_ranks) {
  std::vector<size_t> order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return loads[a] > loads[b]; });
  std::vector<int64_t> sums(static_cast<size_t>(num_ranks), 0);
  std::vector<int> owners(loads.size(), 0);
  for (const size_t i : order) {
    const auto least = std::min_element(sums.begin(), sums.end());
    *least += std::max<int64_t>(1, loads[i]);
    owners[i] = static_cast<int>(least - sums.begin());
  }
  return owners;
}

std::vector<int> deal_in_ranges(std::span<const int64_t> loads, int num_ranks) {
  const auto total =
      static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}) + static_cast<int64_t>(loads.size()));
  std::vector<int> owners;
  double before = 0.0;
  for (const int64_t load : loads) {
    const double own = static_cast<double>(load) + 1.0;  // an empty micro-batch has a place too
    const auto rank = static_cast<int>((before + own / 2.0) / total * num_ranks);
    owners.push_back(std::min(rank, num_ranks - 1));
    before += own;
  }
  return owners;
}

namespace {

size_t lightest(const std::vector<int64_t>& sums) {
  return static_cast<size_t>(std::ranges::min_element(sums) - sums.begin());
}

// Moves one load, if that makes the largest sum smaller.
bool move_one(std::span<const HomeLoad> loads, std::vector<int>& owners, std::vector<int64_t>& sums) {
  const auto from = static_cast<size_t>(std::ranges::max_element(sums) - sums.begin());
  const size_t to = lightest(sums);
  const auto cost = [&](size_t i, size_t rank) {
    const bool is_home = loads[i].home < 0 || loads[i].home == static_cast<int>(rank);
    return is_home ? loads[i].here : loads[i].away;
  };
  size_t best = loads.size();
  int64_t least = sums[from];
  for (size_t i = 0; i < loads.size(); ++i) {
    if (owners[i] != static_cast<int>(from)) continue;
    const int64_t most = std::max(sums[from] - cost(i, from), sums[to] + cost(i, to));
    if (most >= least) continue;
    least = most;
    best = i;
  }
  if (best == loads.size()) return false;
  sums[from] -= cost(best, from);
  sums[to] += cost(best, to);
  owners[best] = static_cast<int>(to);
  return true;
}

}  // namespace

std::vector<int> deal_near_home(std::span<const HomeLoad> loads, int num_ranks) {
  std::vector<int64_t> sums(static_cast<size_t>(num_ranks), 0);
  std::vector<int> owners(loads.size(), 0);
  const auto give = [&](size_t i, size_t rank) {
    owners[i] = static_cast<int>(rank);
    sums[rank] += loads[i].here;
  };
  for (size_t i = 0; i < loads.size(); ++i)
    if (loads[i].home >= 0) give(i, static_cast<size_t>(loads[i].home));
  for (size_t i = 0; i < loads.size(); ++i)
    if (loads[i].home < 0) give(i, lightest(sums));
  while (move_one(loads, owners, sums)) {
  }
  return owners;
}

RankShare::RankShare(std::vector<int> owners, const RankOptions& ranks)
    : communicator_(ranks.communicator), first_of_group_(communicator_->rank()), owners_(std::move(owners)) {}

RankShare::RankShare(std::span<const int64_t> loads, const RankOptions& ranks) : communicator_(ranks.communicator) {
  const int size = ranks.group_size(), num_groups = communicator_->size() / size;
  first_of_group_ = communicator_->rank() / size * size;
  owners_ = ranks.deterministic ? deal_in_ranges(loads, num_groups) : deal_by_load(loads, num_groups);
  for (int& owner : owners_) owner *= size;
}

std::vector<std::optional<size_t>> RankShare::rounds() const {
  std::vector<size_t> counts(static_cast<size_t>(communicator_->size()), 0);
  std::vector<std::optional<size_t>> rounds;
  for (size_t micro = 0; micro < owners_.size(); ++micro) {
    ++counts[static_cast<size_t>(owners_[micro])];
    if (is_mine(micro)) rounds.emplace_back(micro);
  }
  rounds.resize(*std::ranges::max_element(counts));
  return rounds;
}

int rank_in_turn(size_t leaf, const RankOptions& ranks) {
  return static_cast<int>(leaf % static_cast<size_t>(ranks.communicator->size()));
}

RankShare share_update(std::span<const int64_t> loads, const RankOptions& ranks, bool shares_gradients) {
  if (!owners_add_leaves(ranks.deterministic, shares_gradients, ranks.group_size())) return {loads, ranks};
  std::vector<int> owners;
  for (size_t leaf = 0; leaf < loads.size(); ++leaf) owners.push_back(rank_in_turn(leaf, ranks));
  return {std::move(owners), ranks};
}

Result<> RankShare::exchange(std::vector<std::string>& parts, std::string_view stage) const {
  Encoder own;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_told(i)) own.text(parts[i]);
  }
  const std::vector<std::string> all = TRY(communicator_->exchange(own.bytes(), stage));
  std::vector<Decoder> readers(all.begin(), all.end());
  for (size_t i = 0; i < parts.size(); ++i) {
    Decoder& in = readers[static_cast<size_t>(owners_[i])];
    if (!is_told(i))
      parts[i] = in.text();
    else
      in.text();
    if (!in.ok()) {
      return Error{ErrorKind::kInternal, fmt::format("rank {} sent fewer results than its share", owners_[i]),
                   std::string(stage), hints::kOneBuildOfRanks};
    }
  }
  return {};
}

}  // namespace mortise
