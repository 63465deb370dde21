// See round_ranks.h.
#include "train/sampling/round_ranks.h"

#include <fmt/core.h>

#include <utility>

#include "train/loop/decision.h"

namespace mortise {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::string_view kEndStage = "end of sampling";

}  // namespace

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
  if (!all.ok()) heard_ = all.error();
  return all;
}

void RoundRanks::fail(const Error& error) {
  if (!has_rounds_) ranks_->fail(error);
}

std::string RoundRanks::failures() const { return fmt::format("rounds/{}/failures", num_rounds_); }

Result<> RoundRanks::check(std::string_view stage) {
  TRY(ranks_->check(stage));
  if (!has_rounds_ || Clock::now() < next_look_) return {};
  next_look_ = Clock::now() + kBetweenLooks;
  if (TRY(ranks_->add_to_counter(failures(), 0, stage)) == 0) return {};
  gives_way_ = true;
  return Error{ErrorKind::kRankFailure, "another rank has failed while this rank sampled", std::string(stage),
               "look into the logs of the other ranks"};
}

Result<> RoundRanks::finish_round(const Result<>& own) {
  const bool gives_way = std::exchange(gives_way_, false);
  const std::optional<Error> heard = std::exchange(heard_, std::nullopt);
  const std::string counter = failures();
  ++num_rounds_;
  next_look_ = {};
  if (heard) return *heard;
  if (!has_rounds_) return own;
  if (!own.ok() && !gives_way) TRY(ranks_->add_to_counter(counter, 1, kEndStage));
  const auto all = on_every_rank(*ranks_, kEndStage, [&]() -> Result<std::string> {
    if (!gives_way) TRY(own);
    return std::string();
  });
  if (all.ok()) return own;
  // Rewards that fail on too many rows are judged alike by every rank, which then needs no name.
  const bool is_told =
      !own.ok() && all.error().kind == own.error().kind && all.error().what.ends_with(own.error().what);
  return is_told ? own.error() : all.error();
}

}  // namespace mortise
