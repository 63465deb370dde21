#include "plugin/worker/crew.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "foundation/base/env.h"
#include "foundation/base/log.h"

namespace mortise {
namespace {

constexpr int kFirstReadyMs = 60'000;
constexpr int kExitReportMs = 2'000;
constexpr int kMaxStillborn = 3;
constexpr int kMaxRestarts = 3;

}  // namespace

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    const char* const name = ::strsignal(WTERMSIG(status));
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + (name == nullptr ? "unknown" : name) + ")";
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

Result<std::unique_ptr<Crew>> Crew::start(const LoadMessage& load, const CrewOptions& options) {
  std::unique_ptr<Crew> crew(new Crew);
  crew->load_ = load;
  crew->options_ = options;
  // The first alone: a create that fails does so once, and one worker may be all that is wanted (use_one_worker).
  TRY(crew->start_keeper(1));
  TRY(crew->wait_idle(kFirstReadyMs));
  return crew;
}

Result<> Crew::start_keeper(int num_seats) {
  seats_.clear();
  keeper_.reset();
  auto keeper = Keeper::start(options_.program, options_.bubblewrap, load_);
  const bool bad_setting = !keeper.ok() && keeper.error().kind == ErrorKind::kConfig;
  if (!keeper.ok() && !bad_setting && !options_.bubblewrap.empty()) {
    // Many machines forbid what it needs; the filter of system calls remains. A pack that cannot be loaded fails again.
    const std::string why = keeper.error().to_string();
    options_.bubblewrap.clear();
    keeper = Keeper::start(options_.program, options_.bubblewrap, load_);
    if (keeper.ok()) {
      options_.without = "bubblewrap cannot be used here";
      log_debug(options_.without + ": " + why);
    }
  }
  if (!keeper.ok()) return std::move(keeper).error();
  if ((*keeper)->loaded().num_threads > 1 && !load_.load_in_worker) {
    load_.load_in_worker = true;
    keeper->reset();
    keeper = Keeper::start(options_.program, options_.bubblewrap, load_);
    if (!keeper.ok()) return std::move(keeper).error();
  }
  keeper_ = std::move(*keeper);
  for (int i = 0; i < num_seats; ++i) TRY(add_seat());
  return {};
}

std::string Crew::limits_text() const {
  const WorkerLimits& limits = load_.limits;
  std::string text = keeper_->loaded().limits;
  if (!options_.bubblewrap.empty()) {
    text += "; in bubblewrap: sees no other processes";
    if (!limits.network) text += ", has no network";
    if (!limits.write_files) text += ", finds all files read-only";
  } else if (!options_.without.empty()) {
    text += "; " + options_.without;
  }
  return text;
}

Result<> Crew::add_seat() {
  auto [ours, theirs] = TRY(Channel::pair());
  auto seat = std::make_unique<Seat>();
  seat->id = next_id_++;
  seat->channel = std::move(ours);
  TRY(keeper_->fork_worker(seat->id, theirs.take_socket()));
  seats_.push_back(std::move(seat));
  return {};
}

Seat* Crew::take_idle() {
  const auto busy = std::count_if(seats_.begin(), seats_.end(), [](const auto& seat) { return seat->busy; });
  if (busy >= options_.num_workers) return nullptr;
  for (const auto& seat : seats_) {
    if (seat->ready && !seat->busy) return seat.get();
  }
  return nullptr;
}

Result<Seat*> Crew::wait_idle(int timeout_ms) {
  const int64_t deadline = default_env().monotonic_ns() + int64_t{timeout_ms} * 1'000'000;
  while (true) {
    if (Seat* const seat = take_idle()) return seat;
    const int64_t left_ms = (deadline - default_env().monotonic_ns()) / 1'000'000;
    if (left_ms <= 0) {
      return Error{ErrorKind::kPlugin, "no worker got ready within " + std::to_string(timeout_ms) + " ms",
                   load_.identity.label, "look at what its create() waits for"};
    }
    TRY(wait(static_cast<int>(left_ms)));
    for (size_t i = 0; i < seats_.size(); ++i) {
      Seat& seat = *seats_[i];
      if (seat.ready || seat.busy) continue;
      while (auto frame = TRY(seat.channel.receive(0))) TRY(take_ready(seat, *frame));
      if (!seat.ready && has_ended(seat)) {
        end(seat);
        TRY(replace(seat));
        break;  // seats_ has changed
      }
    }
  }
}

Result<> Crew::wait(int timeout_ms) {
  std::vector<pollfd> entries{{keeper_->fd(), POLLIN, 0}};
  for (const auto& seat : seats_) {
    entries.push_back({seat->channel.fd(), POLLIN, 0});
    if (const int handle = keeper_->pidfd(seat->id); handle >= 0) entries.push_back({handle, POLLIN, 0});
  }
  if (::poll(entries.data(), entries.size(), timeout_ms) <= 0) return {};
  if (entries.front().revents == 0) return {};
  return keeper_->pump(0);
}

Result<> Crew::take_ready(Seat& seat, const Frame& frame) {
  if (frame.kind == kLog || frame.kind == kProgress) {
    LogMessage message;
    TRY(decode(frame.body, message));
    if (frame.kind == kProgress) {
      log_progress_line(message.line);
      return {};
    }
    log_message(static_cast<LogLevel>(std::clamp<int64_t>(message.level, 0, 3)), message.line);
    return {};
  }
  if (frame.kind == kError) return decode_error(frame.body);
  if (frame.kind != kReady) {
    return Error{ErrorKind::kPlugin, "a new worker sent the message " + std::to_string(frame.kind),
                 load_.identity.label, ""};
  }
  TRY(decode(frame.body, ready_));
  seat.ready = true;
  num_stillborn_ = 0;
  return {};
}

bool Crew::has_ended(const Seat& seat) const {
  if (seat.channel.closed() || keeper_->exit_status(seat.id)) return true;
  const int handle = keeper_->pidfd(seat.id);
  pollfd entry{handle, POLLIN, 0};
  return handle >= 0 && ::poll(&entry, 1, 0) > 0;
}

WorkerEnd Crew::end(Seat& seat) {
  WorkerEnd ended = kill_and_ask(seat);
  last_end_ = ended.text;
  return ended;
}

WorkerEnd Crew::kill_and_ask(Seat& seat) {
  const int64_t deadline = default_env().monotonic_ns() + int64_t{kExitReportMs} * 1'000'000;
  // One that was only just asked for may not have its handle yet.
  while (keeper_->pidfd(seat.id) < 0 && !keeper_->exit_status(seat.id) && default_env().monotonic_ns() < deadline) {
    if (!keeper_->pump(10).ok()) return {"the end of its keeper"};
  }
  if (const int handle = keeper_->pidfd(seat.id); handle >= 0)
    ::syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0);
  while (!keeper_->exit_status(seat.id) && default_env().monotonic_ns() < deadline) {
    if (!keeper_->pump(10).ok()) return {"the end of its keeper"};
  }
  const std::optional<int> status = keeper_->exit_status(seat.id);
  if (!status) return {"no known cause"};
  return {describe_exit(*status), WIFSIGNALED(*status) ? WTERMSIG(*status) : 0};
}

Result<> Crew::replace(Seat& seat) {
  keeper_->forget(seat.id);
  if (!seat.ready && ++num_stillborn_ >= kMaxStillborn) {
    const std::string memory = memory_setting(load_.limits);
    return Error{
        ErrorKind::kPlugin,
        std::to_string(num_stillborn_) + " workers in a row ended before they were ready, the last by " + last_end_,
        load_.identity.label, "look at create() of the reward" + (memory.empty() ? "" : "; its memory: " + memory)};
  }
  std::erase_if(seats_, [&](const auto& other) { return other.get() == &seat; });
  return add_seat();
}

Result<> Crew::restart() {
  if (++num_restarts_ > kMaxRestarts) {
    return Error{ErrorKind::kPlugin, "the keeper of its workers has ended " + std::to_string(num_restarts_) + " times",
                 load_.identity.label, "see the system's log for who killed it; the usual cause is memory"};
  }
  return start_keeper(options_.num_workers + 1);
}

Result<> Crew::refill() {
  num_stillborn_ = 0;
  while (seats_.size() <= static_cast<size_t>(options_.num_workers)) TRY(add_seat());
  return {};
}

void Crew::use_one_worker() { options_.num_workers = 1; }

}  // namespace mortise
