// Cuts parameters into ranges of ranks, and moves the owners' numbers to all ranks.
#include "learn/optim/shards.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "learn/update/rank_share.h"

namespace mortise {

FlatRange FlatRange::within(const FlatRange& other) const {
  const int64_t from = std::max(begin, other.begin);
  return {from, std::max(from, std::min(end, other.end))};
}

std::vector<TensorPart> blocks_of(std::span<const int64_t> sizes) {
  std::vector<TensorPart> blocks;
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (int64_t begin = 0; begin < sizes[i]; begin += Shards::kBlock)
      blocks.push_back({i, begin, std::min(Shards::kBlock, sizes[i] - begin)});
  }
  return blocks;
}

namespace {

// What is not cut: tensors, or blocks of them.
std::vector<int64_t> sizes_of_pieces(std::span<const int64_t> sizes, ShardCut cut) {
  if (cut == ShardCut::kTensors) return {sizes.begin(), sizes.end()};
  std::vector<int64_t> out;
  for (const TensorPart& block : blocks_of(sizes)) out.push_back(block.size);
  return out;
}

// How much each rank gets of `total` so that the smallest loads become equal.
std::vector<int64_t> fill_up(std::span<const int64_t> loads, int64_t total) {
  std::vector<int64_t> order(loads.begin(), loads.end());
  std::ranges::sort(order);
  int64_t level = 0, below = 0;
  for (size_t count = 1; count <= order.size(); ++count) {
    below += order[count - 1];
    level = (below + total + static_cast<int64_t>(count) - 1) / static_cast<int64_t>(count);
    if (count == order.size() || level <= order[count]) break;
  }
  std::vector<int64_t> out;
  for (const int64_t load : loads) out.push_back(std::max<int64_t>(0, level - load));
  return out;
}

}  // namespace

Shards::Shards(std::span<const int64_t> sizes, int num_ranks, ShardCut cut) : begins_{0} {
  for (const int64_t size : sizes) begins_.push_back(begins_.back() + size);
  const std::vector<int64_t> pieces = sizes_of_pieces(sizes, cut);
  set_ranges(pieces, deal_in_ranges(pieces, num_ranks), num_ranks);
}

Shards::Shards(std::span<const int64_t> sizes, ShardCut cut, std::vector<int64_t>& loads) : begins_{0} {
  for (const int64_t size : sizes) begins_.push_back(begins_.back() + size);
  const std::vector<int64_t> pieces = sizes_of_pieces(sizes, cut), shares = fill_up(loads, begins_.back());
  const int last = static_cast<int>(loads.size()) - 1;
  std::vector<int> owners;
  int rank = 0;
  int64_t before = 0, end = shares.front();
  for (const int64_t piece : pieces) {  // to the rank in whose share its middle lies
    while (rank < last && before + piece / 2 >= end) end += shares[static_cast<size_t>(++rank)];
    owners.push_back(rank);
    before += piece;
  }
  set_ranges(pieces, owners, last + 1);
  for (size_t i = 0; i < loads.size(); ++i) loads[i] += ranges_[i].size();
}

// `owners`: of the pieces, in rising order.
void Shards::set_ranges(std::span<const int64_t> pieces, std::span<const int> owners, int num_ranks) {
  size_t piece = 0;
  int64_t end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int64_t begin = end;
    for (; piece < owners.size() && owners[piece] == rank; ++piece) end += pieces[piece];
    ranges_.push_back({begin, end});
  }
}

Shards Shards::only(std::span<const size_t> tensors) const {
  Shards out;
  out.begins_ = {0};
  for (const size_t tensor : tensors) out.begins_.push_back(out.begins_.back() + begins_[tensor + 1] - begins_[tensor]);
  int64_t end = 0;
  for (const FlatRange& range : ranges_) {
    const int64_t begin = end;
    for (const size_t tensor : tensors) end += range.within({begins_[tensor], begins_[tensor + 1]}).size();
    out.ranges_.push_back({begin, end});
  }
  return out;
}

int64_t Shards::largest() const {
  int64_t most = 0;
  for (const FlatRange& range : ranges_) most = std::max(most, range.size());
  return most;
}

std::vector<TensorPart> Shards::parts(const FlatRange& range) const {
  std::vector<TensorPart> parts;
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), range.begin);
  for (auto tensor = static_cast<size_t>(after - begins_.begin()) - 1;
       tensor + 1 < begins_.size() && begins_[tensor] < range.end; ++tensor) {
    const FlatRange part = range.within({begins_[tensor], begins_[tensor + 1]});
    if (part.size() > 0) parts.push_back({tensor, part.begin - begins_[tensor], part.size()});
  }
  return parts;
}

void copy_from_tensors(const Shards& shards, std::span<const at::Tensor> tensors, const FlatRange& range,
                       const at::Tensor& flat) {
  int64_t at = 0;
  for (const TensorPart& part : shards.parts(range)) {
    flat.narrow(0, at, part.size).copy_(tensors[part.tensor].view({-1}).narrow(0, part.begin, part.size));
    at += part.size;
  }
}

void copy_to_tensors(const Shards& shards, const at::Tensor& flat, const FlatRange& range,
                     std::span<const at::Tensor> tensors) {
  int64_t at = 0;
  for (const TensorPart& part : shards.parts(range)) {
    tensors[part.tensor].view({-1}).narrow(0, part.begin, part.size).copy_(flat.narrow(0, at, part.size));
    at += part.size;
  }
}

ShardRounds::ShardRounds(const Shards& shards, int64_t numbers)
    : shards_(&shards),
      piece_(std::max<int64_t>(1, numbers / shards.num_ranks())),
      num_rounds_((shards.largest() + piece_ - 1) / piece_) {}

FlatRange ShardRounds::piece(int64_t round, int rank) const {
  const FlatRange range = shards_->of(rank);
  return range.within({range.begin + round * piece_, range.begin + (round + 1) * piece_});
}

Result<> gather_tensors(Communicator& communicator, const Shards& shards, std::span<const at::Tensor> tensors,
                        std::string_view stage) {
  const int num_ranks = communicator.size(), own = communicator.rank();
  if (num_ranks == 1 || tensors.empty()) return {};
  const ShardRounds rounds(shards, Shards::kRoundBytes / static_cast<int64_t>(tensors[0].element_size()));
  for (int64_t round = 0; round < rounds.size(); ++round) {
    const FlatRange mine = rounds.piece(round, own);
    std::vector<int64_t> sent(static_cast<size_t>(num_ranks), mine.size()), received;
    int64_t num_received = 0;
    sent[static_cast<size_t>(own)] = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      received.push_back(rank == own ? 0 : rounds.piece(round, rank).size());
      num_received += received.back();
    }
    const at::Tensor copies = at::empty({num_ranks - 1, mine.size()}, tensors[0].options());
    for (int64_t i = 0; i < num_ranks - 1; ++i) copy_from_tensors(shards, tensors, mine, copies[i]);
    const at::Tensor others = at::empty({num_received}, tensors[0].options());
    TRY(communicator.all_to_all(copies, sent, others, received, stage));
    int64_t at = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int64_t size = received[static_cast<size_t>(rank)];
      if (size > 0) copy_to_tensors(shards, others.narrow(0, at, size), rounds.piece(round, rank), tensors);
      at += size;
    }
  }
  return {};
}

}  // namespace mortise
