// Exchanges pieces of gradients between their ranks and their owners.
#include "learn/update/owned_gradient.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string_view>

namespace mortise {

namespace {

constexpr std::string_view kOwnersStage = "gradients";

// What this rank has for the owners' pieces of a round: for each owner, its gradients one behind another.
at::Tensor terms_for_owners(const Shards& shards, const ShardRounds& rounds, int64_t round,
                            std::span<const RankGradient> gradients, int own, const at::TensorOptions& options,
                            std::vector<int64_t>& sizes) {
  int64_t num_own = 0, sum = 0;
  for (const RankGradient& gradient : gradients) num_own += gradient.rank == own ? 1 : 0;
  sizes.clear();
  for (int owner = 0; owner < shards.num_ranks(); ++owner) {
    sizes.push_back(num_own * rounds.piece(round, owner).size());
    sum += sizes.back();
  }
  const at::Tensor terms = at::empty({sum}, options);
  int64_t at = 0;
  for (int owner = 0; owner < shards.num_ranks(); ++owner) {
    const FlatRange piece = rounds.piece(round, owner);
    for (const RankGradient& gradient : gradients) {
      if (gradient.rank != own || piece.size() == 0) continue;
      copy_from_tensors(shards, gradient.tensors, piece, terms.narrow(0, at, piece.size()));
      at += piece.size();
    }
  }
  return terms;
}

}  // namespace

Result<> reduce_to_owned(Communicator& communicator, const Shards& shards, std::span<const RankGradient> gradients,
                         const AddTerms& add, const at::Tensor& owned, size_t most_gradients) {
  if (gradients.empty()) return {};
  const int own = communicator.rank();
  const auto num_gradients = static_cast<int64_t>(gradients.size());
  const auto most = static_cast<int64_t>(std::max(most_gradients, gradients.size()));
  const ShardRounds rounds(shards, Shards::kRoundBytes / static_cast<int64_t>(owned.element_size()) / most);
  for (int64_t round = 0; round < rounds.size(); ++round) {
    std::vector<int64_t> sent, received(static_cast<size_t>(shards.num_ranks()), 0);
    const at::Tensor terms = terms_for_owners(shards, rounds, round, gradients, own, owned.options(), sent);
    const FlatRange piece = rounds.piece(round, own);
    for (const RankGradient& gradient : gradients) received[static_cast<size_t>(gradient.rank)] += piece.size();
    const at::Tensor arrived = at::empty({num_gradients * piece.size()}, owned.options());
    TRY(communicator.all_to_all(terms, sent, arrived, received, kOwnersStage));
    if (piece.size() == 0) continue;
    // They arrive by rank; the list may have another order.
    std::vector<int64_t> next(received.size(), 0);
    for (size_t rank = 1; rank < next.size(); ++rank) next[rank] = next[rank - 1] + received[rank - 1];
    std::vector<at::Tensor> list;
    for (const RankGradient& gradient : gradients) {
      int64_t& at = next[static_cast<size_t>(gradient.rank)];
      list.push_back(arrived.narrow(0, at, piece.size()));
      at += piece.size();
    }
    add(list, owned.narrow(0, piece.begin - shards.of(own).begin, piece.size()));
  }
  return {};
}

}  // namespace mortise
