// See group_step.h.
#include "learn/optim/group_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace mortise {

namespace {

// Do the ranks' numbers, one behind the other in rank order, make up the whole?
bool is_whole_in_order(const TensorSplit& split) { return split.axis == SplitAxis::kRows && split.ranges.size() == 1; }

// Frees the pieces, which may be copies of columns.
at::Tensor take_joined(std::vector<at::Tensor>& pieces) {
  at::Tensor all = at::cat(pieces);
  pieces.clear();
  return all;
}

int64_t sum_of(std::span<const int64_t> sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

}  // namespace

GroupStep::GroupStep(const ModelPart& part, std::span<const OptimizedParameter> parameters)
    : part_(&part), wholes_(parameters.begin(), parameters.end()), owners_(parameters.size(), 0) {
  for (OptimizedParameter& whole : wholes_) {
    const size_t place = part.find(whole.name);
    splits_.push_back(&part.split(place));
    // The shape is all that a rule reads of it.
    whole.tensor = at::empty({1}, whole.tensor.options()).detach().expand(part.whole_sizes(place));
  }
}

// The largest come first, each to the rank that has least.
void GroupStep::deal(std::span<const size_t> parameters) {
  std::vector<size_t> order;
  std::ranges::copy_if(parameters, std::back_inserter(order), [&](size_t i) { return is_split(i); });
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return wholes_[i].tensor.numel(); });
  std::vector<int64_t> loads(static_cast<size_t>(part_->ranks()->size()), 0);
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(loads);
    *least += wholes_[i].tensor.numel();
    owners_[i] = static_cast<int>(least - loads.begin());
  }
}

Result<> GroupStep::step(std::span<StepPart> parts, std::span<const size_t> places, const StepWhole& step,
                         const WeightsDone& done) const {
  std::vector<StepPart> common;
  std::vector<std::vector<Turn>> turns(static_cast<size_t>(part_->ranks()->size()));
  size_t num_rounds = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_split(places[i])) {
      common.push_back(parts[i]);
      continue;
    }
    std::vector<Turn>& of_rank = turns[static_cast<size_t>(owners_[places[i]])];
    of_rank.push_back({places[i], &parts[i]});
    num_rounds = std::max(num_rounds, of_rank.size());
  }
  if (!common.empty()) step(common);
  for (size_t i = 0; i < num_rounds; ++i) {
    Round round;
    for (const std::vector<Turn>& of_rank : turns)
      round.push_back(i < of_rank.size() ? std::optional(of_rank[i]) : std::nullopt);
    TRY(step_round(round, step));
    for (const std::optional<Turn>& turn : round) {
      if (turn) done(turn->part->weights);
    }
  }
  return {};
}

Result<> GroupStep::step_round(const Round& round, const StepWhole& step) const {
  const std::optional<Turn>& own = round[static_cast<size_t>(part_->ranks()->rank())];
  at::Tensor gradient = to_owners(round, &StepPart::gradient);
  const at::Tensor weights = to_owners(round, &StepPart::weights);
  TRY(part_->ranks()->status());  // else there are no numbers to step
  if (own) {
    StepPart whole = *own->part;
    whole.parameter = &wholes_[own->place];
    whole.weights = weights;
    whole.gradient = std::move(gradient);
    step({&whole, 1});
  }
  from_owners(round, weights);
  return part_->ranks()->status();
}

int64_t GroupStep::numbers_of(size_t place, int64_t size) const {
  const at::Tensor& whole = wholes_[place].tensor;
  return whole.numel() / whole.size(splits_[place]->dim()) * size;
}

// All ranks' numbers of what this rank steps; undefined if it steps nothing.
at::Tensor GroupStep::to_owners(const Round& round, at::Tensor StepPart::*numbers) const {
  TensorRanks& ranks = *part_->ranks();
  std::vector<at::Tensor> sent;
  std::vector<int64_t> sent_sizes, received_sizes;
  const std::optional<Turn>& own = round[static_cast<size_t>(ranks.rank())];
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::optional<Turn>& turn = round[static_cast<size_t>(rank)];
    if (turn) sent.push_back(splits_[turn->place]->counted(turn->part->*numbers, ranks.rank()).reshape({-1}));
    sent_sizes.push_back(turn ? sent.back().numel() : 0);
    received_sizes.push_back(own ? numbers_of(own->place, splits_[own->place]->counted_size(rank)) : 0);
  }
  const at::Tensor received = at::empty({sum_of(received_sizes)}, sent.front().options());
  ranks.exchange(take_joined(sent), sent_sizes, received, received_sizes);
  if (!own) return {};
  const TensorSplit& split = *splits_[own->place];
  const at::IntArrayRef sizes = wholes_[own->place].tensor.sizes();
  if (is_whole_in_order(split)) return received.view(sizes);
  at::Tensor whole = at::empty(sizes, received.options());
  std::vector<int64_t> part_sizes = sizes.vec();
  int64_t begin = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int64_t size = received_sizes[static_cast<size_t>(rank)];
    part_sizes[static_cast<size_t>(split.dim())] = split.counted_size(rank);
    split.put_part(received.narrow(0, begin, size).view(part_sizes), rank, whole);
    begin += size;
  }
  return whole;
}

// `whole`: the new weights of what this rank has stepped.
void GroupStep::from_owners(const Round& round, const at::Tensor& whole) const {
  TensorRanks& ranks = *part_->ranks();
  std::vector<at::Tensor> sent;
  std::vector<int64_t> sent_sizes, received_sizes;
  const std::optional<Turn>& own = round[static_cast<size_t>(ranks.rank())];
  at::TensorOptions options;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (own) sent.push_back(splits_[own->place]->part_of(whole, rank).reshape({-1}));
    sent_sizes.push_back(own ? sent.back().numel() : 0);
    const std::optional<Turn>& turn = round[static_cast<size_t>(rank)];
    if (turn) options = turn->part->weights.options();
    received_sizes.push_back(turn ? numbers_of(turn->place, splits_[turn->place]->used_size(ranks.rank())) : 0);
  }
  const at::Tensor received = at::empty({sum_of(received_sizes)}, options);
  ranks.exchange(own ? take_joined(sent) : at::empty({0}, options), sent_sizes, received, received_sizes);
  int64_t begin = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const std::optional<Turn>& turn = round[static_cast<size_t>(rank)];
    if (!turn) continue;
    const TensorSplit& split = *splits_[turn->place];
    const at::Tensor used = turn->part->weights.narrow(split.dim(), 0, split.used_size(ranks.rank()));
    used.copy_(received.narrow(0, begin, used.numel()).view(used.sizes()));
    begin += used.numel();
  }
}

}  // namespace mortise
