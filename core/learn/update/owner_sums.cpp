// Sends gradients in rounds and adds what arrives.
#include "learn/update/owner_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <numeric>
#include <utility>

namespace mortise {

namespace {

std::vector<ParameterRange> ranges_of(std::span<const ShardUnit> units) {
  std::vector<ParameterRange> ranges;
  for (const ShardUnit& unit : units) ranges.push_back({unit.parameters.front(), unit.parameters.back() + 1});
  return ranges;
}

at::Tensor numbers_for(std::span<const int64_t> sizes, const at::TensorOptions& options) {
  return at::empty({std::accumulate(sizes.begin(), sizes.end(), int64_t{0})}, options);
}

}  // namespace

at::Tensor& own_gradient_of(ShardUnit& unit, std::span<const OptimizedParameter> parameters, int rank) {
  if (!unit.own_gradient.defined())
    unit.own_gradient = at::zeros({unit.shards.of(rank).size()}, parameters[unit.parameters.front()].tensor.options());
  return unit.own_gradient;
}

OwnerSums::OwnerSums(std::span<const OptimizedParameter> parameters, std::vector<ShardUnit>& units, int64_t round_bytes,
                     OwnerTrees* trees)
    : BucketSums(parameters, ranges_of(units)), units_(&units), round_bytes_(round_bytes), trees_(trees) {}

void OwnerSums::begin(std::vector<bool> senders, size_t first_leaf) {
  senders_ = std::move(senders);
  first_leaf_ = first_leaf;
  begin_again();
}

Result<> OwnerSums::finish() {
  const c10::NoGradGuard no_grad;
  while (!on_their_way_.empty()) TRY(finish_oldest());
  return {};
}

Result<> OwnerSums::start(size_t bucket, Communicator& ranks) {
  ShardUnit& unit = (*units_)[bucket];
  const auto element = static_cast<int64_t>(own_gradient_of(unit, parameters(), ranks.rank()).element_size());
  Bucket next{&unit, ShardRounds(unit.shards, round_bytes_ / element), 0, {}};
  for (const size_t i : unit.parameters) {
    const at::Tensor& tensor = parameters()[i].tensor;
    const at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (!senders_[static_cast<size_t>(ranks.rank())]) continue;
    // Gradients of transposed products may lie the other way.
    next.gradients.push_back(gradient.defined() ? gradient.contiguous() : at::zeros_like(tensor.detach()));
  }
  waiting_.push_back(std::move(next));
  const bool is_last = bucket + 1 == units_->size();
  return start_rounds(is_last ? 0 : kMostBuckets, ranks);
}

// As many as may be on their way. It waits for them only while more buckets wait than may. On GPUs all ranks start a round
// at the same place of their pass: calls of two groups in different orders on different GPUs may wait for each other.
Result<> OwnerSums::start_rounds(size_t most_buckets, Communicator& ranks) {
  while (!waiting_.empty()) {
    if (on_their_way_.size() >= kMostRounds) {
      const bool may_ask = waiting_.front().unit->own_gradient.is_cpu();
      const bool is_done = may_ask && on_their_way_.front().pending->is_done();
      if (waiting_.size() <= most_buckets && !is_done) return {};
      TRY(finish_oldest());
    }
    TRY(start_round(ranks));
  }
  return {};
}

Result<> OwnerSums::start_round(Communicator& ranks) {
  Bucket& bucket = waiting_.front();
  const Shards& shards = bucket.unit->shards;
  const at::Tensor& own = bucket.unit->own_gradient;
  const FlatRange piece = bucket.rounds.piece(bucket.next_round, ranks.rank());
  const int64_t at_own = piece.size() == 0 ? 0 : piece.begin - shards.of(ranks.rank()).begin;
  std::vector<int64_t> sent_sizes, received_sizes;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    sent_sizes.push_back(bucket.gradients.empty() ? 0 : bucket.rounds.piece(bucket.next_round, rank).size());
    received_sizes.push_back(senders_[static_cast<size_t>(rank)] ? piece.size() : 0);
  }
  Round round{numbers_for(sent_sizes, own.options()),
              numbers_for(received_sizes, own.options()),
              own.narrow(0, at_own, piece.size()),
              {},
              nullptr};
  for (size_t rank = 0; rank < senders_.size(); ++rank) {
    if (senders_[rank]) round.leaves.push_back(first_leaf_ + rank);
  }
  int64_t at = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int64_t size = sent_sizes[static_cast<size_t>(rank)];
    if (size == 0) continue;
    copy_from_tensors(shards, bucket.gradients, bucket.rounds.piece(bucket.next_round, rank),
                      round.sent.narrow(0, at, size));
    at += size;
  }
  round.pending = TRY(ranks.start_all_to_all(round.sent, sent_sizes, round.terms, received_sizes, "gradients"));
  on_their_way_.push_back(std::move(round));
  if (++bucket.next_round >= bucket.rounds.size()) waiting_.pop_front();
  return {};
}

Result<> OwnerSums::finish_oldest() {
  const Round round = std::move(on_their_way_.front());
  on_their_way_.pop_front();
  TRY(round.pending->wait());
  const int64_t size = round.sums.numel();
  size_t next = 0;
  for (int64_t begin = 0; size > 0 && begin < round.terms.numel(); begin += size, ++next) {
    const at::Tensor term = round.terms.narrow(0, begin, size);
    if (trees_ != nullptr)
      trees_->add(round.sums, round.leaves[next], term);
    else
      round.sums.add_(term);
  }
  return {};
}

}  // namespace mortise
