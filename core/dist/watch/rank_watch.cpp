// The two threads, and the waiting of a collective.
#include "dist/watch/rank_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>

#include "dist/watch/thread_stacks.h"
#include "foundation/base/log.h"
#include "foundation/base/signal.h"
#include "foundation/metrics/rank_progress.h"

namespace mortise {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// What a rank waits for at its end: the store must have heard it, and the others must have heard the store.
constexpr milliseconds kFlushLimit{2000};
constexpr milliseconds kOthersLimit{10000};
constexpr milliseconds kVerdictLimit{4000};  // with the grace less than the launcher's patience (local_group.h)
// A collective that failed for no reason that shows in this time.
constexpr milliseconds kExplainLimit{20000};
// The judge looks this often, and no gap counts for more than kMaxGap: this process may have been stopped.
constexpr milliseconds kTick{100};
constexpr milliseconds kMaxGap{1000};
// A killed process closes its connections just before the kernel shows its end: time to see that it was killed.
constexpr milliseconds kDyingLimit{1000};
// While a rank waits, its view shows so often how far the others are.
constexpr milliseconds kViewPause{500};
// A rank that works while it waits looks so often at least whether the others have come.
constexpr milliseconds kMostMeanwhile{10};
// How long a main thread has that is still connecting to the others or reads its model: there is nothing to save yet.
constexpr milliseconds kStartGrace{1000};

bool is_same_wait(const RankState& a, const RankState& b) {
  return a.waits && b.waits && a.calls == b.calls && a.stage == b.stage && a.awaits == b.awaits;
}

void end_this_process(const Error& error) {
  log_error(error);
  log_flush();
  std::_Exit(static_cast<int>(error.kind));
}

}  // namespace

std::string state_key(int rank) { return fmt::format("rank/{}", rank); }

// A call in which a thread waits. Two threads may wait at the same time, in groups of their own.
struct Wait {
  std::string stage;
  RankSet ranks;
  double waited_s = 0;
  double notice_s = 0;  // the log names the late ranks when waited_s reaches this
};

// What the log of a rank that waits says. Empty: nothing now.
struct Notice {
  std::string text;
  bool has_stacks = false;  // the log file also gets those of this rank
};

// How long the others have waited for this rank.
struct Lateness {
  int64_t calls = -1;  // the calls of this rank when it began
  double late_s = 0;
  double notice_s = 0;
};

struct RankWatch::Shared : std::enable_shared_from_this<RankWatch::Shared> {
  std::mutex mutex;
  std::condition_variable changed;  // anything below has changed
  // Wakes only the threads that wait in calls: a call is done, or there is a verdict.
  std::condition_variable call_ended;
  WatchOptions options;
  std::unique_ptr<RankStore> store;  // the thread `talk` alone uses it
  RankState mine;
  int64_t written = 0;  // version of `mine` that the store has
  int64_t version = 1;
  std::vector<RankView> views;
  std::optional<Verdict> verdict;
  std::optional<Verdict> proposal;
  bool store_lost = false;
  double store_lost_s = 0;
  double store_silent_s = 0;
  std::vector<bool> ended_seen;     // the processes that had ended at the last look, by rank
  int64_t asked_for_ended = 0;      // the version whose answer tells why
  std::string own_stage = "start";  // where this rank is when it does not wait
  std::list<Wait> waits;            // the newest last
  Lateness lateness;
  Clock::time_point looked = Clock::now();  // when the judge last looked, or was done with what it wrote
  double stopped_s = 0;                     // the longest time in which this process did not run
  bool call_failed = false;
  bool leaving = false;
  bool stop = false;
  bool talk_ended = false;
  std::thread talker;
  std::thread judge;

  void change() {  // with the mutex
    ++version;
    changed.notify_all();
  }
  void show_place() {  // with the mutex
    mine.waits = !waits.empty();
    mine.stage = waits.empty() ? own_stage : waits.back().stage;
    mine.awaits = waits.empty() ? RankSet() : waits.back().ranks;
  }
  void talk();
  bool exchange_states(int64_t now_version, const std::string& text, const std::optional<Verdict>& mine_proposed);
  void take_answer(const std::vector<std::string>& values, int64_t now_version);
  [[nodiscard]] std::vector<std::string> progress_of_ranks() const;
  void judge_loop();
  void judge_once(std::unique_lock<std::mutex>& lock, double elapsed_s);
  Notice notice_of_waiting(const Situation& s);
  bool is_long_late(const Situation& s, double elapsed_s);
  void look_for_ended_processes(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool is_hang(const Situation& s, const Verdict& found) const;
  void write_stacks(std::unique_lock<std::mutex>& lock);
  void settle(std::unique_lock<std::mutex>& lock, const Verdict& found);
  void set_verdict(const Verdict& found);
  [[nodiscard]] Error error_of(const Verdict& found, std::string_view stage) const;
  [[nodiscard]] bool serves_store() const { return options.store_rank == options.rank; }
  bool others_have_ended();
  void work_meanwhile(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over,
                      const std::function<bool(int wait_ms)>& meanwhile);
};

// One exchange with the store. False if it is lost.
bool RankWatch::Shared::exchange_states(int64_t now_version, const std::string& text,
                                        const std::optional<Verdict>& mine_proposed) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(state_key(rank));
  keys.emplace_back(kVerdictKey);
  bool ok = store->set(state_key(options.rank), text).ok();
  if (ok && mine_proposed) ok = store->compare_set(kVerdictKey, kNoVerdict, encode(*mine_proposed)).ok();
  Result<std::vector<std::string>> values = Error{};
  if (ok) values = store->get_all(keys);
  const std::lock_guard lock(mutex);
  if (!ok || !values.ok() || values->size() != keys.size()) {
    store_lost = true;
  } else {
    take_answer(*values, now_version);
  }
  changed.notify_all();
  return !store_lost;
}

void RankWatch::Shared::take_answer(const std::vector<std::string>& values, int64_t now_version) {
  store_silent_s = 0;
  written = now_version;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const auto state = decode_rank_state(values[i]);
    if (!state || *state == views[i].state) continue;
    if (!is_same_wait(*state, views[i].state)) views[i].waits_s = 0;
    views[i].state = *state;
    views[i].silent_s = 0;
    // So that this rank, too, stops sampling and scoring. The ranks agree where the run ends (train/loop/run_loop.cpp).
    if (!stop_requested()) follow_stop_signal(state->stop_signal);
  }
  if (options.rank == 0) note_ranks(progress_of_ranks());
  if (values.back() != kNoVerdict && !verdict) {
    if (const auto found = decode_verdict(values.back())) set_verdict(*found);
  }
}

// By rank, of those that are in this step.
std::vector<std::string> RankWatch::Shared::progress_of_ranks() const {
  std::vector<std::string> all;
  for (const RankView& view : views) {
    const bool is_here = view.state.step == mine.step && view.state.status == RankStatus::kRunning;
    all.push_back(is_here ? view.state.progress : std::string());
  }
  return all;
}

void RankWatch::Shared::set_verdict(const Verdict& found) {  // with the mutex
  verdict = found;
  if (mine.status == RankStatus::kRunning) mine.status = RankStatus::kStopped;
  change();
  call_ended.notify_all();
}

void RankWatch::Shared::talk() {
  std::unique_lock lock(mutex);
  while (!stop || written < version) {
    changed.wait_for(lock, options.beat, [this] { return stop || written < version; });
    ++mine.beats;
    mine.progress = own_progress();
    mine.stop_signal = stop_signal();
    const int64_t now_version = version;
    const std::string text = encode(mine);
    const std::optional<Verdict> proposed = verdict ? std::nullopt : proposal;
    lock.unlock();
    const bool answered = exchange_states(now_version, text, proposed);
    lock.lock();
    if (!answered) break;
  }
  talk_ended = true;
  changed.notify_all();
}

Error RankWatch::Shared::error_of(const Verdict& found, std::string_view stage) const {
  const std::string here = found.rank == options.rank
                               ? fmt::format("the other ranks have given this rank up: {}", found.cause)
                               : found.cause;
  const std::string stopped =
      stopped_s > options.limits.dead_s ? fmt::format(", after it had been stopped for {:.0f} s", stopped_s) : "";
  return {ErrorKind::kRankFailure,
          fmt::format("{}; this rank ({}) was in '{}'{}", here, options.rank, stage, stopped),
          {},
          found.rank >= 0 && found.rank != options.rank
              ? fmt::format("look into the log of rank {}, then start the run again", found.rank)
              : "start the run again"};
}

// A process that has ended may have written just before, after this rank last asked, that it failed or that its run is
// done. So the store is asked once more: only a rank that left no word was killed. A store that does not answer, or that
// is gone, leaves that open.
void RankWatch::Shared::look_for_ended_processes(std::unique_lock<std::mutex>& lock) {
  const RankProcess self = options.processes[static_cast<size_t>(options.rank)];
  lock.unlock();
  std::vector<bool> ended(options.processes.size());
  for (size_t i = 0; i < ended.size(); ++i) ended[i] = has_ended(options.processes[i], self);
  lock.lock();
  if (ended != ended_seen) {
    ended_seen = ended;
    change();
    asked_for_ended = version;
  }
  const auto has_answer = [&] { return written >= asked_for_ended || store_lost || stop; };
  changed.wait_for(lock, kTick, has_answer);
  for (size_t i = 0; i < ended.size(); ++i) {
    views[i].has_ended = ended[i];
    if (written >= asked_for_ended) views[i].is_final = ended[i];
  }
}

// The store decides whose verdict counts; without an answer, this rank's does.
void RankWatch::Shared::settle(std::unique_lock<std::mutex>& lock, const Verdict& found) {
  if (!store_lost) {
    proposal = found;
    change();
    changed.wait_for(lock, kFlushLimit, [this] { return verdict || store_lost || stop; });
  }
  if (!verdict) set_verdict(found);
}

void RankWatch::Shared::judge_once(std::unique_lock<std::mutex>& lock, double elapsed_s) {
  store_silent_s += elapsed_s;
  if (store_lost) store_lost_s += std::min(elapsed_s, seconds_of(kTick));  // it may have been lost just now
  for (RankView& view : views) {
    view.silent_s += elapsed_s;
    if (view.state.waits) view.waits_s += elapsed_s;
  }
  for (Wait& wait : waits) wait.waited_s += elapsed_s;
  if (verdict || leaving) return;
  Situation s;
  s.rank = options.rank;
  s.ranks = views;
  s.calls = mine.calls;
  s.waits = mine.waits;
  for (const Wait& wait : waits) {
    if (wait.waited_s < s.waited_s) continue;
    s.waited_s = wait.waited_s;
    s.waits_in = wait.stage;
    s.awaits = wait.ranks;
  }
  s.call_failed = call_failed;
  s.store_rank = serves_store() ? -1 : options.store_rank;
  s.store_address = options.store_address;
  s.store_lost = store_lost_s > seconds_of(kDyingLimit);
  s.store_silent_s = store_silent_s;
  if (const auto found = diagnose(s, options.limits)) {
    if (is_hang(s, *found)) {
      write_stacks(lock);
      if (verdict || leaving) return;  // another rank has told the cause meanwhile, or the run has ended
    }
    settle(lock, *found);
    return;
  }
  const Notice notice = notice_of_waiting(s);
  const bool is_late = is_long_late(s, elapsed_s);
  if (notice.text.empty() && !is_late) return;
  const std::string place = place_text(mine);
  const double late_s = lateness.late_s;
  lock.unlock();
  if (!notice.text.empty()) log_warn(notice.text);
  if (is_late) {
    log_warn(
        fmt::format("the other ranks have waited {:.0f} s for this rank ({}), which is {}; the log file has the "
                    "stacks of its threads",
                    late_s, options.rank, place));
  }
  lock.lock();
  if (is_late || notice.has_stacks) write_stacks(lock);
}

// No rank has failed, no process has ended and no connection has closed: the blamed rank says nothing, or does not arrive.
bool RankWatch::Shared::is_hang(const Situation& s, const Verdict& found) const {
  if (s.call_failed || s.store_lost) return false;
  if (found.rank < 0) return true;
  const RankView& view = views[static_cast<size_t>(found.rank)];
  return view.state.status == RankStatus::kRunning && !view.has_ended;
}

// Those of this rank's threads, into its log file.
void RankWatch::Shared::write_stacks(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  log_info_at(LogPlace::kFile, fmt::format("the threads of rank {} are here:\n{}", options.rank, thread_stacks()));
  lock.lock();
  looked = Clock::now();  // threads that do not answer take time: this process was not stopped meanwhile
}

// A rank that hangs is so known long before wait_s, and so is a message that is lost.
Notice RankWatch::Shared::notice_of_waiting(const Situation& s) {
  const auto longest = std::max_element(waits.begin(), waits.end(),
                                        [](const Wait& a, const Wait& b) { return a.waited_s < b.waited_s; });
  if (longest == waits.end() || longest->waited_s < longest->notice_s) return {};
  const std::string late = late_ranks_text(s), waiting = all_wait_text(s, options.limits.notice_s);
  const std::string circle = circle_text(s, options.limits.notice_s);
  if (late.empty() && waiting.empty() && circle.empty()) return {};
  longest->notice_s = 2 * longest->waited_s;
  const std::string here =
      fmt::format("this rank ({}) has waited {:.0f} s in '{}'", options.rank, longest->waited_s, longest->stage);
  if (!late.empty()) return {fmt::format("{}: {}", here, late), false};
  if (!circle.empty()) {
    return {fmt::format("{}, and ranks wait for each other in different calls: {}; the log file has the stacks of this "
                        "rank's threads",
                        here, circle),
            true};
  }
  return {fmt::format("{}, and so have {}: {}; a message may be lost, and the log file has the stacks of this rank's "
                      "threads",
                      here, s.awaits.is_part() ? "the others of its group" : "all others", waiting),
          true};
}

// The others wait for this rank, for as long as its own log should say.
bool RankWatch::Shared::is_long_late(const Situation& s, double elapsed_s) {
  if (!is_awaited(s) || lateness.calls != mine.calls) lateness = {mine.calls, 0, options.limits.notice_s};
  if (!is_awaited(s)) return false;
  lateness.late_s += elapsed_s;
  if (lateness.late_s < lateness.notice_s) return false;
  lateness.notice_s = 2 * lateness.late_s;
  return true;
}

void RankWatch::Shared::judge_loop() {
  std::unique_lock lock(mutex);
  looked = Clock::now();
  double since_look_s = 0;
  double since_verdict_s = 0;
  while (!stop) {
    changed.wait_for(lock, kTick, [this] { return stop; });
    const Clock::time_point now = Clock::now();
    const double elapsed_s = seconds_of(std::min<Clock::duration>(now - looked, kMaxGap));
    stopped_s = std::max(stopped_s, seconds_of(now - looked));
    looked = now;
    since_look_s += elapsed_s;
    if (since_look_s > seconds_of(options.beat) || call_failed || store_lost) {
      look_for_ended_processes(lock);
      since_look_s = 0;
    }
    judge_once(lock, elapsed_s);
    if (!verdict || mine.status == RankStatus::kFailed) continue;
    since_verdict_s += elapsed_s;
    const bool has_started = mine.calls > 1;  // the first one is that of the group itself
    const double over_s =
        since_verdict_s - seconds_of(has_started ? options.end_grace : std::min(options.end_grace, kStartGrace));
    const bool is_read = !serves_store() || others_have_ended() || over_s > seconds_of(kVerdictLimit);
    if (over_s < 0 || !is_read) continue;
    const Error error = error_of(*verdict, mine.stage);
    lock.unlock();
    log_info(fmt::format("rank {} ends while it works; its threads were here:\n{}", options.rank, thread_stacks()));
    options.end_process(error);
    return;
  }
}

RankWatch::RankWatch(std::unique_ptr<RankStore> store, WatchOptions options) : shared_(std::make_shared<Shared>()) {
  Shared& shared = *shared_;
  shared.options = std::move(options);
  if (!shared.options.end_process) shared.options.end_process = end_this_process;
  shared.store = std::move(store);
  shared.mine.stage = shared.own_stage;
  shared.views.resize(static_cast<size_t>(shared.options.size));
  shared.ended_seen.resize(shared.options.processes.size());
  for (size_t i = 0; i < shared.views.size(); ++i) {
    const RankProcess& process = shared.options.processes[i];
    shared.views[i].state.stage = "start";
    shared.views[i].description = process.pid != 0
                                      ? fmt::format("rank {} (process {} on {})", i, process.pid, process.host)
                                      : fmt::format("rank {}", i);
  }
  const std::shared_ptr<Shared> kept = shared_;
  shared.talker = std::thread([kept] { kept->talk(); });
  shared.judge = std::thread([kept] { kept->judge_loop(); });
}

void RankWatch::enter(std::string_view stage, int64_t step) {
  const std::lock_guard lock(shared_->mutex);
  shared_->own_stage = stage;
  shared_->mine.step = step;
  shared_->show_place();
}

Result<> RankWatch::begin_call(std::string_view stage, bool is_collective) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->verdict) return shared_->error_of(*shared_->verdict, stage);
  if (is_collective) ++shared_->mine.calls;
  return {};
}

namespace {

template <class Shared>
class SharedCompletion : public Completion {
 public:
  explicit SharedCompletion(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void finish() override {
    {
      const std::lock_guard lock(shared_->mutex);
      done_ = true;
    }
    shared_->call_ended.notify_all();
  }
  [[nodiscard]] bool done() const { return done_; }  // with the mutex

 private:
  std::shared_ptr<Shared> shared_;
  bool done_ = false;
};

}  // namespace

std::shared_ptr<Completion> RankWatch::new_completion() { return std::make_shared<SharedCompletion<Shared>>(shared_); }

// A wait is prolonged by an eighth at most, if `meanwhile` keeps to its time.
void RankWatch::Shared::work_meanwhile(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over,
                                       const std::function<bool(int wait_ms)>& meanwhile) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point shown = begin;
  if (call_ended.wait_for(lock, milliseconds{1}, is_over)) return;
  for (bool goes_on = true; goes_on && !is_over();) {
    lock.unlock();
    const Clock::time_point now = Clock::now();
    if (now - shown >= kViewPause) {
      live_refresh();
      shown = now;
    }
    const auto waited = std::chrono::duration_cast<milliseconds>(now - begin);
    goes_on = meanwhile(static_cast<int>(std::clamp(waited / 8, milliseconds{1}, kMostMeanwhile).count()));
    lock.lock();
  }
}

Result<> RankWatch::wait(const std::shared_ptr<Completion>& completion, std::string_view stage, const RankSet& ranks,
                         const std::function<bool(int wait_ms)>& meanwhile) {
  const auto& call = static_cast<const SharedCompletion<Shared>&>(*completion);
  std::unique_lock lock(shared_->mutex);
  const auto wait = shared_->waits.insert(
      shared_->waits.end(),
      {.stage = std::string(stage), .ranks = ranks, .waited_s = 0, .notice_s = shared_->options.limits.notice_s});
  shared_->show_place();
  const auto is_over = [&] { return call.done() || shared_->verdict; };
  try {
    if (meanwhile) shared_->work_meanwhile(lock, is_over, meanwhile);
  } catch (...) {  // this rank waits no longer
    if (!lock.owns_lock()) lock.lock();
    shared_->waits.erase(wait);
    shared_->show_place();
    throw;
  }
  while (!shared_->call_ended.wait_for(lock, kViewPause, is_over)) {
    lock.unlock();  // the view may wait for its terminal
    live_refresh();
    lock.lock();
  }
  shared_->waits.erase(wait);
  if (!call.done()) shared_->own_stage = stage;  // the rank ends here
  shared_->show_place();
  if (!call.done()) return shared_->error_of(*shared_->verdict, stage);
  return {};
}

Error RankWatch::explain_failure(std::string_view stage, const std::string& text) {
  std::unique_lock lock(shared_->mutex);
  shared_->own_stage = stage;
  shared_->show_place();
  shared_->call_failed = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kExplainLimit, [this] { return shared_->verdict.has_value(); });
  if (!shared_->verdict)
    shared_->settle(lock, {-1, fmt::format("a collective failed, but all ranks answer: {}", text)});
  return shared_->error_of(*shared_->verdict, stage);
}

Result<> RankWatch::check(std::string_view stage) const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->verdict) return shared_->error_of(*shared_->verdict, stage);
  return {};
}

void RankWatch::fail(const Error& error) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->mine.status == RankStatus::kRunning) {
    shared_->mine.status = RankStatus::kFailed;
    shared_->mine.error = error.to_string();
    shared_->change();
  }
  shared_->changed.wait_for(lock, kFlushLimit,
                            [this] { return shared_->written >= shared_->version || shared_->talk_ended; });
}

// With the mutex. After a run that is done, a rank that is slow to read this is waited for as long as one may be silent.
bool RankWatch::Shared::others_have_ended() {
  const double silence_s = mine.status == RankStatus::kGone ? options.limits.answer_s : options.limits.dead_s;
  for (size_t i = 0; i < views.size(); ++i) {
    const RankView& view = views[i];
    const bool lives = view.state.status == RankStatus::kRunning || view.state.status == RankStatus::kLeft;
    if (static_cast<int>(i) != options.rank && lives && !view.has_ended && view.silent_s < silence_s) return false;
  }
  return true;
}

Result<> RankWatch::leave() {
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (shared.verdict) return shared.error_of(*shared.verdict, "end");
  shared.mine.status = RankStatus::kLeft;
  shared.own_stage = "end";
  shared.show_place();
  shared.change();
  const auto all_have_left = [&shared] {
    return std::all_of(shared.views.begin(), shared.views.end(), [](const RankView& view) {
      return view.state.status == RankStatus::kLeft || view.state.status == RankStatus::kGone;
    });
  };
  shared.changed.wait(lock, [&] { return shared.verdict || all_have_left(); });
  if (!all_have_left()) return shared.error_of(*shared.verdict, "end");
  shared.leaving = true;
  shared.mine.status = RankStatus::kGone;
  shared.change();
  return {};
}

RankWatch::~RankWatch() {
  const RankStatus status = [this] {
    const std::lock_guard lock(shared_->mutex);
    return shared_->mine.status;
  }();
  if (status == RankStatus::kRunning || status == RankStatus::kLeft)
    fail({ErrorKind::kInternal, "it ended early", {}, {}});
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  shared.changed.wait_for(lock, kFlushLimit, [&] { return shared.written >= shared.version || shared.talk_ended; });
  if (shared.serves_store()) {  // the others still read it
    const std::chrono::duration<double> answer(shared.options.limits.answer_s);
    const auto limit = status == RankStatus::kGone ? std::chrono::duration_cast<milliseconds>(answer) : kOthersLimit;
    shared.changed.wait_for(lock, limit, [&] { return shared.talk_ended || shared.others_have_ended(); });
  }
  shared.stop = true;
  shared.changed.notify_all();
  // The talker may be blocked by a store that does not answer. It then keeps what it uses.
  const bool talked = shared.changed.wait_for(lock, kMaxGap, [&] { return shared.talk_ended; });
  lock.unlock();
  shared.judge.join();
  if (talked)
    shared.talker.join();
  else
    shared.talker.detach();
}

}  // namespace mortise
