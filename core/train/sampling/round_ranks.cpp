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

// Every rank has sent its last message of the round, so none looks at its counter any more. A counter that stays costs a few
// bytes in the store.
void RoundRanks::forget(const std::string& counter) const {
  if (ranks_->rank() == 0) static_cast<void>(ranks_->forget_counter(counter, kEndStage));
}

Result<> RoundRanks::finish_round(const Result<>& own) {
  const bool gives_way = std::exchange(gives_way_, false);
  const std::optional<Error> heard = std::exchange(heard_, std::nullopt);
  const std::string counter = failures();
  ++num_rounds_;
  next_look_ = {};
  if (heard) {
    forget(counter);
    return *heard;
  }
  if (!has_rounds_) return own;
  // Only so that the others stop sooner. They get the error itself below.
  if (!own.ok() && !gives_way) static_cast<void>(ranks_->add_to_counter(counter, 1, kEndStage));
  const auto all = on_every_rank(*ranks_, kEndStage, [&]() -> Result<std::string> {
    if (!gives_way) TRY(own);
    return std::string();
  });
  forget(counter);
  if (all.ok()) return own;
  // If this rank reaches no other one any more, its own error is the cause, or has the same one.
  const bool is_alone = all.error().kind == ErrorKind::kRankFailure;
  if (!own.ok() && !gives_way && is_alone) return own.error();
  // Rewards that fail on too many rows are judged alike by every rank, which then needs no name.
  const bool is_told =
      !own.ok() && all.error().kind == own.error().kind && all.error().what.ends_with(own.error().what);
  return is_told ? own.error() : all.error();
}

}  // namespace mortise
