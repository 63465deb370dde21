// Hands calls to the workers of an environment, and takes their answers.
#include "plugin/worker/episode_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "plugin/worker/episode_messages.h"

namespace mortise {
namespace {

constexpr size_t kMostCalls = 8;  // that a worker gets at once
constexpr int kSendMs = 10'000;
constexpr int kDescribeMs = 60'000;
// After the time limit, for a call that ends on its own: that says more, and costs no other row of the worker. On a busy
// machine the answer may come seconds late.
constexpr int64_t kLateMs = 5000;

std::string how_it_ended(const Slot& slot, const WorkerEnd& ended) {
  if (slot.stray) return failure_text(*slot.stray);
  return ended.signal == SIGXCPU ? "it used more CPU than plugins.worker_cpu_time; its worker was ended"
                                 : fmt::format("its worker was ended by {}", ended.text);
}

std::string seconds_text(int64_t ms) { return fmt::format("{:g} s", static_cast<double>(ms) / 1000.0); }

}  // namespace

int64_t EpisodePool::episode_of(const Call& call) {
  return std::visit([](const auto& one) { return one.episode; }, call);
}

Result<std::unique_ptr<EpisodeRunner>> EpisodePool::start(const PluginRef& ref, InstanceIdentity identity,
                                                          const RunKey& key, const WorkerLimits& limits,
                                                          const PoolOptions& options, int64_t timeout_ms) {
  std::unique_ptr<EpisodePool> pool(new EpisodePool(identity.label, timeout_ms, *options.system));
  const LoadMessage load = load_message(ref, std::move(identity), limits, key);
  pool->supervisor_ = TRY(Supervisor::start(load, options));
  pool->keeps_episodes_ = pool->supervisor_->ready().granularity != 0;
  TRY(pool->ask_description());
  TRY(pool->supervisor_->fill());
  pool->lanes_.resize(static_cast<size_t>(std::max(1, pool->supervisor_->num_workers())));
  const std::string& without = pool->supervisor_->without();
  log_info(fmt::format("{}: {} worker{}{}", pool->label_, pool->lanes_.size(), pool->lanes_.size() == 1 ? "" : "s",
                       without.empty() ? "" : fmt::format(" ({})", without)));
  return std::unique_ptr<EpisodeRunner>(std::move(pool));
}

Result<> EpisodePool::ask_description() {
  Slot& slot = *TRY(supervisor_->wait_idle(kDescribeMs));
  TRY(slot.channel.send(kDescribe, {}, {}, kSendMs));
  while (true) {
    auto frame = TRY(supervisor_->receive(slot, kDescribeMs));
    if (!frame) return Error{ErrorKind::kPlugin, "its worker did not describe itself", label_, ""};
    if (frame->kind == kError) return decode_error(frame->body);
    if (frame->kind == kDescription) {
      description_ = std::move(frame->body);
      return {};
    }
    TRY(supervisor_->take_message(slot, *frame));
  }
}

void EpisodePool::act(EpisodeAction action) {
  const auto found = lane_of_.find(action.episode);
  if (found == lane_of_.end())
    shared_.emplace_back(std::move(action));
  else
    lanes_[found->second].own.emplace_back(std::move(action));
}

bool EpisodePool::is_idle() const {
  return shared_.empty() &&
         std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.own.empty() && lane.in_work.empty(); });
}

Result<> EpisodePool::advance(int wait_ms, const Sink& sink) {
  if (supervisor_->lost()) TRY(recover(sink));
  bool any = false;
  const Sink count = [&](EpisodeAnswer answer) {
    any = true;
    sink(std::move(answer));
  };
  TRY(hand_out(count));
  TRY(take_in(count));
  if (!any && !is_idle() && wait_ms > 0) {
    TRY(supervisor_->wait(time_to_next_deadline(wait_ms)));
    TRY(take_in(count));
  }
  TRY(enforce_deadlines(count));
  return hand_out(count);
}

Result<> EpisodePool::hand_out(const Sink& sink) {
  if (!lost_.empty()) {
    std::erase_if(shared_, [&](const Call& call) {
      if (!std::holds_alternative<EpisodeAction>(call) || lost_.erase(episode_of(call)) == 0) return false;
      EpisodeAnswer answer;
      answer.episode = episode_of(call);
      answer.failure = "it was in a worker that was lost while another episode ran";
      sink(std::move(answer));
      return true;
    });
  }
  for (Lane& lane : lanes_) {
    if (!lane.in_work.empty() || (lane.own.empty() && shared_.empty())) continue;
    if (lane.slot == nullptr) {
      lane.slot = supervisor_->idle_slot();
      if (lane.slot == nullptr) continue;
      lane.slot->busy = true;
    }
    TRY(give(lane));
  }
  return {};
}

// The next calls of one form, its own first.
std::deque<EpisodePool::Call> EpisodePool::next_calls(Lane& lane) {
  std::deque<Call>& from = lane.own.empty() ? shared_ : lane.own;
  const size_t share = lane.own.empty() ? std::max<size_t>(1, shared_.size() / lanes_.size()) : lane.own.size();
  std::deque<Call> calls;
  while (!from.empty() && calls.size() < std::min(share, kMostCalls) &&
         (calls.empty() || from.front().index() == calls.front().index())) {
    calls.push_back(std::move(from.front()));
    from.pop_front();
  }
  return calls;
}

Result<> EpisodePool::give(Lane& lane) {
  lane.in_work = next_calls(lane);
  lane.since_ns = system_.monotonic_ns();
  lane.num_pending = 0;
  Result<> sent;
  if (std::holds_alternative<EpisodeStart>(lane.in_work.front())) {
    ResetMessage message{timeout_ms_, {}};
    for (const Call& call : lane.in_work) {
      message.starts.push_back(std::get<EpisodeStart>(call));
      lane.step = message.starts.back().step;
      if (!keeps_episodes_) continue;
      lane.open.insert(message.starts.back().episode);
      lane_of_[message.starts.back().episode] = static_cast<size_t>(&lane - lanes_.data());
    }
    sent = lane.slot->channel.send(kReset, encode(message), {}, kSendMs);
  } else {
    ActMessage message{timeout_ms_, {}};
    for (const Call& call : lane.in_work) message.actions.push_back(std::get<EpisodeAction>(call));
    sent = lane.slot->channel.send(kAct, encode(message), {}, kSendMs);
  }
  // A worker that takes no messages has ended or will: take_in() finds out which.
  if (!sent.ok()) log_debug(fmt::format("{}: {}", label_, sent.error().to_string()));
  return {};
}

Result<> EpisodePool::take_in(const Sink& sink) {
  if (supervisor_->lost()) return recover(sink);
  for (Lane& lane : lanes_) {
    if (lane.slot == nullptr) continue;
    if (TRY(take_frames(lane, sink))) continue;
    const WorkerEnd ended = supervisor_->end(*lane.slot);
    TRY(take_frames(lane, sink));
    TRY(end_lane(lane, how_it_ended(*lane.slot, ended), sink));
    if (supervisor_->lost()) return recover(sink);
  }
  return turn_other_slots();
}

// What a worker has said. False: it has ended.
Result<bool> EpisodePool::take_frames(Lane& lane, const Sink& sink) {
  while (true) {
    auto frame = supervisor_->receive(*lane.slot, 0);
    if (!frame.ok()) return false;
    if (!*frame) return !supervisor_->has_ended(*lane.slot);
    if ((**frame).kind == kAnswer && !lane.in_work.empty()) {
      take_answer(lane, **frame, sink);
    } else if ((**frame).kind == kError) {
      log_warn(fmt::format("{}: its worker failed: {}", label_, decode_error((**frame).body).to_string()));
    } else {
      TRY(supervisor_->take_message(*lane.slot, **frame));
    }
  }
}

void EpisodePool::take_answer(Lane& lane, const Frame& frame, const Sink& sink) {
  const int64_t asked = episode_of(lane.in_work.front());
  lane.in_work.pop_front();
  lane.since_ns = system_.monotonic_ns();
  lane.num_pending = 0;
  EpisodeAnswer answer;
  if (!decode(frame.body, answer).ok() || answer.episode != asked) {
    fail(lane, asked, "its worker sent a message that cannot be read", sink);
    return;
  }
  if (!answer.failure.empty()) {
    fail(lane, asked, answer.failure, sink);
    return;
  }
  sink(std::move(answer));
}

// Spares and workers that are starting.
Result<> EpisodePool::turn_other_slots() {
  const auto is_of_lane = [&](const Slot* slot) {
    return std::ranges::any_of(lanes_, [&](const Lane& lane) { return lane.slot == slot; });
  };
  for (size_t i = 0; i < supervisor_->slots().size(); ++i) {
    Slot& slot = *supervisor_->slots()[i];
    if (is_of_lane(&slot)) continue;
    while (true) {
      auto frame = supervisor_->receive(slot, 0);
      if (!frame.ok() || !*frame) break;
      TRY(supervisor_->take_message(slot, **frame));
    }
    if (!supervisor_->has_ended(slot)) continue;
    supervisor_->end(slot);
    return supervisor_->lost() ? Result<>() : supervisor_->replace(slot);  // the list has changed: the rest next time
  }
  return {};
}

Result<> EpisodePool::enforce_deadlines(const Sink& sink) {
  if (timeout_ms_ == 0) return {};
  const int64_t now = system_.monotonic_ns();
  for (Lane& lane : lanes_) {
    if (lane.slot == nullptr || lane.in_work.empty()) continue;
    if (now < lane.since_ns + (timeout_ms_ + kLateMs) * kMsInNs) continue;
    // The end of a long answer waits in the worker while the trainer does something else, and now comes.
    const size_t before = std::exchange(lane.num_pending, lane.slot->channel.num_pending());
    if (lane.num_pending > before) {
      lane.since_ns = now - timeout_ms_ * kMsInNs;
      continue;
    }
    supervisor_->end(*lane.slot);
    TRY(end_lane(lane,
                 fmt::format("it took longer than rollout.multi_turn.timeout = {}; its worker was ended",
                             seconds_text(timeout_ms_)),
                 sink));
    if (supervisor_->lost()) return recover(sink);
  }
  return {};
}

int EpisodePool::time_to_next_deadline(int wait_ms) const {
  const int64_t now = system_.monotonic_ns();
  int64_t wait = wait_ms;
  for (const Lane& lane : lanes_) {
    if (timeout_ms_ == 0 || lane.in_work.empty()) continue;
    wait = std::min(wait, (lane.since_ns + (timeout_ms_ + kLateMs) * kMsInNs - now) / kMsInNs + 1);
  }
  return static_cast<int>(std::max<int64_t>(wait, 0));
}

// The lane's worker has ended. The lane gets another when it has work.
Result<> EpisodePool::end_lane(Lane& lane, const std::string& reason, const Sink& sink) {
  settle(lane, reason, /*may_blame=*/true, sink);
  Slot& slot = *std::exchange(lane.slot, nullptr);
  return supervisor_->lost() ? Result<>() : supervisor_->replace(slot);
}

void EpisodePool::settle(Lane& lane, const std::string& reason, bool may_blame, const Sink& sink) {
  if (may_blame && !lane.in_work.empty()) {
    const int64_t blamed = episode_of(lane.in_work.front());
    lane.in_work.pop_front();
    fail(lane, blamed, reason, sink);
  }
  std::deque<Call> left = std::exchange(lane.in_work, {});
  for (Call& call : lane.own) left.push_back(std::move(call));
  lane.own.clear();
  std::deque<Call> again;
  for (Call& call : left) {
    const int64_t episode = episode_of(call);
    if (keeps_episodes_ && std::holds_alternative<EpisodeAction>(call)) {
      fail(lane, episode, fmt::format("it was in a worker that was lost while another episode ran ({})", reason), sink);
    } else {
      lane.open.erase(episode);
      lane_of_.erase(episode);
      again.push_back(std::move(call));
    }
  }
  shared_.insert(shared_.begin(), std::make_move_iterator(again.begin()), std::make_move_iterator(again.end()));
  // The others are lost too; their next call says so.
  for (const int64_t episode : lane.open) lane_of_.erase(episode);
  lost_.insert(lane.open.begin(), lane.open.end());
  lane.open.clear();
}

void EpisodePool::fail(Lane& lane, int64_t episode, const std::string& why, const Sink& sink) {
  lane.open.erase(episode);
  lane_of_.erase(episode);
  EpisodeAnswer answer;
  answer.episode = episode;
  answer.failure = why;
  sink(std::move(answer));
}

// The fork server has ended, and all workers with it.
Result<> EpisodePool::recover(const Sink& sink) {
  const Error cause = *supervisor_->lost();
  log_warn(fmt::format("{}: {}; starting it again", label_, cause.to_string()));
  for (Lane& lane : lanes_) {
    settle(lane, cause.what, /*may_blame=*/false, sink);
    lane.slot = nullptr;
  }
  return supervisor_->restart();
}

Result<> EpisodePool::close() {
  shared_.clear();
  for (Lane& lane : lanes_) {
    lane.own.clear();
    if (!lane.in_work.empty() && lane.slot != nullptr) {  // it is at a call that nobody waits for
      supervisor_->end(*lane.slot);
      TRY(end_lane(lane, "the step is over", [](const EpisodeAnswer&) {}));
      if (supervisor_->lost()) TRY(recover([](const EpisodeAnswer&) {}));
    }
    if (lane.slot != nullptr && !lane.open.empty()) {
      const CloseMessage message{lane.step, {lane.open.begin(), lane.open.end()}};
      (void)lane.slot->channel.send(kClose, encode(message), {}, kSendMs);
    }
    lane.in_work.clear();
    lane.open.clear();
  }
  shared_.clear();
  lane_of_.clear();
  lost_.clear();
  return {};
}

}  // namespace mortise
