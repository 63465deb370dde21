// Draws numbers from counters that all ranks share, and looks for notes.
#include "train/sampling/rank_handover.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace mortise {

static_assert(PromptHandover::kMaxBytes <= Communicator::kMaxNoteBytes);

RankHandover::RankHandover(Communicator& ranks, std::string_view stage, std::chrono::milliseconds pause)
    : ranks_(&ranks), stage_(stage), number_(ranks.next_number()), asking_(pause), answering_(pause) {}

std::chrono::milliseconds RankHandover::pause_of(int num_ranks) {
  return std::chrono::milliseconds(5) * std::max(2, num_ranks);
}

void RankHandover::Pace::found() {
  pause_ = first_;
  next_ = {};
}

void RankHandover::Pace::found_nothing() {
  next_ = Clock::now() + pause_;
  pause_ = std::min(2 * pause_, 8 * first_);
}

std::string RankHandover::name(std::string_view what) const {
  return fmt::format("{}/{}/handover/{}", stage_, number_, what);
}

std::string RankHandover::note(int64_t number) const { return fmt::format("{}/{}", name("rows"), number); }

// A rank need not answer itself.
void RankHandover::forget_own() {
  if (!asked_ || asked_ != answers_) return;
  asked_.reset();
  answers_.reset();
}

Result<bool> RankHandover::is_asked(bool has_prompts) {
  if ((!has_prompts && !answers_) || !answering_.is_due()) return false;
  const int64_t num_asked = TRY(ranks_->add_to_counter(name("asked"), 0, stage_));
  while (!answers_ && num_answered_ < num_asked) {
    answers_ = TRY(ranks_->add_to_counter(name("answered"), 1, stage_));
    num_answered_ = *answers_ + 1;
    forget_own();
  }
  if (answers_ && *answers_ < num_asked) {
    answering_.found();
    return true;
  }
  answering_.found_nothing();
  return false;
}

Result<> RankHandover::answer(const std::string& rows) {
  if (!answers_) return Error{ErrorKind::kInternal, "no rank has asked for a prompt", "", "please report this"};
  return ranks_->leave_note(note(*std::exchange(answers_, std::nullopt)), rows, stage_);
}

Result<std::optional<std::string>> RankHandover::ask(bool wants) {
  if ((!wants && !asked_) || !asking_.is_due()) return std::optional<std::string>();
  if (!asked_) {
    asked_ = TRY(ranks_->add_to_counter(name("asked"), 1, stage_));
    forget_own();
    asking_.found_nothing();
    return std::optional<std::string>();
  }
  std::optional<std::string> rows = TRY(ranks_->take_note(note(*asked_), stage_));
  if (!rows) {
    asking_.found_nothing();
    return rows;
  }
  asked_.reset();
  asking_.found();
  if (rows->empty()) rows.reset();  // asks again
  return rows;
}

Result<> RankHandover::close() {
  if (asked_) TRY(ranks_->take_note(note(*asked_), stage_));
  if (!ranks_->is_main()) return {};
  for (const char* what : {"asked", "answered"}) TRY(ranks_->forget_counter(name(what), stage_));
  return {};
}

}  // namespace mortise
