// See round_ranks.h.
#include "train/sampling/round_ranks.h"

#include <utility>

#include "train/loop/decision.h"

namespace mortise {

Result<> RoundRanks::use_side_group() {
  ranks_ = TRY(ranks_->side_group());
  has_rounds_ = true;
  return {};
}

Result<std::vector<std::string>> RoundRanks::exchange(const std::string& bytes, std::string_view stage,
                                                      const Meanwhile& meanwhile) {
  if (!has_rounds_) return ranks_->exchange(bytes, stage, meanwhile);
  auto all = on_every_rank(
      *ranks_, stage, [&]() -> Result<std::string> { return bytes; }, meanwhile);
  has_heard_ = !all.ok();
  return all;
}

void RoundRanks::fail(const Error& error) {
  if (!has_rounds_) ranks_->fail(error);
}

Result<> RoundRanks::finish_round(const Result<>& own) {
  if (!has_rounds_ || std::exchange(has_heard_, false)) return own;
  const auto all = on_every_rank(*ranks_, "end of sampling", [&]() -> Result<std::string> {
    TRY(own);
    return std::string();
  });
  if (all.ok()) return {};
  // Rewards that fail on too many rows are judged alike by every rank, which then needs no name.
  const bool is_told =
      !own.ok() && all.error().kind == own.error().kind && all.error().what.ends_with(own.error().what);
  return is_told ? own.error() : all.error();
}

}  // namespace mortise
