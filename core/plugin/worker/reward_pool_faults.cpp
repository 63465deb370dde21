// What the pool does when a worker ends or takes too long: blames a row, gives the others to another worker, fails the rest.
#include <fmt/core.h>
#include <algorithm>
#include <csignal>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "plugin/worker/reward_pool.h"

namespace mortise {
namespace {

constexpr int64_t kRowGraceMs = 50;    // for a plugin that checks its deadline and stops
constexpr int64_t kPickUpMs = 10'000;  // for a worker to begin with its next row
constexpr int kMaxPieceTries = 3;

std::string seconds(int64_t ms) { return format_duration(static_cast<double>(ms) * 1e-3); }

}  // namespace

// Ends a worker, fails its current row, and puts the rows that it had not reached back in the queue. `reason` "": it
// died.
Result<> RewardPool::end_worker(Slot& slot, std::string reason) {
  const WorkerEnd ended = supervisor_->end(slot);
  if (reason.empty() && slot.stray) reason = failure_text(*slot.stray);
  if (reason.empty()) {
    const Work* const work = work_of(slot);
    const std::string unit = work == nullptr ? "the row" : unit_of(work->piece);
    reason = cpu_ms_ > 0 && ended.signal == SIGXCPU
                 ? fmt::format("{} used more CPU than plugins.worker_cpu_time = {}; its worker was ended", unit,
                               seconds(cpu_ms_))
                 : fmt::format("its worker was ended by {} while it scored {}", ended.text, unit);
    if (work != nullptr && !work->error.empty()) reason = "its worker failed: " + work->error;
  }
  if (supervisor_->lost()) return recover();
  TRY(settle(slot, reason, /*may_blame=*/true));
  return supervisor_->replace(slot);
}

// Takes what an ended worker leaves behind.
Result<> RewardPool::settle(Slot& slot, const std::string& text, bool may_blame) {
  while (true) {  // what it said before it died
    auto frame = supervisor_->receive(slot, 0);
    if (!frame.ok() || !*frame) break;
    TRY(take_frame(slot, **frame));
  }
  ++num_replaced_;
  if (last_slot_ == &slot) last_slot_ = nullptr;
  Work* const found = work_of(slot);
  if (found == nullptr) return {};
  Work work = std::move(*found);
  std::erase_if(at_work_, [&](const Work& other) { return other.slot == &slot; });
  if (slot.stray) {  // the rows that it calls done may be the fork's, and the current row need not be the one at fault
    put_back(work.piece, /*blamed=*/false, text);
    return {};
  }
  take_rows(work);
  const int64_t at_hand = slot.area.head->at_hand.load();
  const bool blamed = may_blame && at_hand >= 0 && at_hand < work.piece.count && slot.area.done[at_hand].load() == 0;
  const int64_t call_rows = granularity() == Granularity::kRow ? 1 : work.piece.count;
  if (blamed) fail_rows(work.piece, at_hand, call_rows, MORTISE_ABORTED, text);
  put_back(work.piece, blamed, text);
  return {};
}

// Unscored rows of a piece go to another worker, unless too many workers have ended at it.
void RewardPool::put_back(RowPiece piece, bool blamed, const std::string& text) {
  piece.num_tries += blamed ? 0 : 1;
  if (piece.num_tries >= kMaxPieceTries) fail_rows(piece, 0, piece.count, MORTISE_ABORTED, text);
  while (piece.count > 0 && !account_.is_open(todo_.row_of(piece, 0))) ++piece.first, --piece.count;
  if (piece.count > 0) todo_.put_back(piece);
}

// What one call of the plugin is about, for messages.
std::string RewardPool::unit_of(const RowPiece& piece) const {
  if (granularity() == Granularity::kRow) return "the row";
  const std::optional<int64_t> group = todo_.group_of(piece);
  if (granularity() == Granularity::kBatch || !group) return "the batch";
  return fmt::format("group {} ({}{}", *group, piece.count, piece.count == 1 ? " row)" : " rows)");
}

// The fork server has ended, and all workers with it.
Result<> RewardPool::recover() {
  const Error cause = *supervisor_->lost();
  log_warn(fmt::format("{}: {}; starting it again", label_, cause.to_string()));
  while (!at_work_.empty()) TRY(settle(*at_work_.front().slot, cause.what, /*may_blame=*/false));
  last_slot_ = nullptr;
  return supervisor_->restart();
}

Result<> RewardPool::enforce_deadlines() {
  const int64_t now = system_.monotonic_ns();
  if (deadline_ns_ > 0 && now > deadline_ns_ + kRowGraceMs * kMsInNs) {
    const std::string text = "the batch took longer than timeout = " + seconds(request_.timeout_ms);
    while (!at_work_.empty()) TRY(end_worker(*at_work_.front().slot, text));
    fail_the_rest(MORTISE_DEADLINE_EXCEEDED, "not scored: " + text);
    return {};
  }
  if (request_.row_timeout_ms == 0 || granularity() == Granularity::kBatch) return {};
  for (size_t i = 0; i < at_work_.size(); ++i) {
    const Work& work = at_work_[i];
    if (now < row_deadline_ns(work)) continue;
    const bool has_begun = work.slot->area.head->at_hand.load() >= 0;
    TRY(end_worker(*work.slot, has_begun
                                   ? fmt::format("{} took longer than row_timeout = {}; its worker was killed",
                                                 unit_of(work.piece), seconds(request_.row_timeout_ms))
                                   : fmt::format("its worker did nothing for {} and was killed", seconds(kPickUpMs))));
    i = static_cast<size_t>(-1);
  }
  return {};
}

// When the worker is given up: it is at a row for too long, or has not begun with the next one.
int64_t RewardPool::row_deadline_ns(const Work& work) const {
  const OutputHead& head = *work.slot->area.head;
  if (head.at_hand.load(std::memory_order_acquire) >= 0)
    return head.started_ns.load() + (request_.row_timeout_ms + kRowGraceMs) * kMsInNs;
  return std::max(head.started_ns.load(), work.given_ns) + (request_.row_timeout_ms + kPickUpMs) * kMsInNs;
}

void RewardPool::fail_rows(const RowPiece& piece, int64_t first, int64_t count, int32_t code, const std::string& text) {
  for (int64_t i = first; i < first + count; ++i) account_.fail(todo_.row_of(piece, i), code, text);
}

void RewardPool::fail_the_rest(int32_t code, const std::string& text) {
  for (const RowPiece& piece : todo_.waiting()) fail_rows(piece, 0, piece.count, code, text);
  todo_.clear();
}

int RewardPool::time_to_next_deadline() const {
  const int64_t now = system_.monotonic_ns();
  int64_t wait_ms = 1000;  // now and then for a stop of the run
  if (deadline_ns_ > 0) wait_ms = std::min(wait_ms, (deadline_ns_ - now) / kMsInNs + kRowGraceMs + 1);
  if (request_.row_timeout_ms > 0 && granularity() != Granularity::kBatch) {
    for (const Work& work : at_work_) {
      // One that has not begun may do so right after this look.
      const int64_t soonest = now + (request_.row_timeout_ms + kRowGraceMs) * kMsInNs;
      wait_ms = std::min(wait_ms, (std::min(soonest, row_deadline_ns(work)) - now) / kMsInNs + 1);
    }
  }
  // Without a pause, the next attempt waits for an idle worker, which causes an event.
  if (const int64_t pause_ms = memory_.wait_ms(now); pause_ms > 0) wait_ms = std::min(wait_ms, pause_ms);
  return static_cast<int>(std::max<int64_t>(wait_ms, 0));
}

}  // namespace mortise
