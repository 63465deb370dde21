// Starts fork server and workers, keeps a spare, and replaces those that end.
#include "plugin/worker/supervisor.h"

#include <fmt/core.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/open_files.h"

namespace mortise {
namespace {

constexpr int kReadyMs = 60'000;  // for create() of the plugin
constexpr int64_t kExitReportMs = 2'000;
constexpr int64_t kOwnEndMs = 1'000;  // for a worker that has closed its connection
constexpr int64_t kRestartPauseMs = 50;
constexpr const char* kLostText = "the end of its fork server";

}  // namespace

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    const char* const name = ::strsignal(WTERMSIG(status));
    return fmt::format("signal {} ({})", WTERMSIG(status), name == nullptr ? "unknown" : name);
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

Result<std::unique_ptr<Supervisor>> Supervisor::start(const LoadMessage& load, const PoolOptions& options) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(load, options));
  // One worker first: a create that fails does so once, and one worker may be all that is wanted (use_one_worker).
  const int num_workers = std::exchange(supervisor->options_.num_workers, options.has_spare ? 0 : 1);
  TRY(supervisor->start_bare_or_sandboxed());
  TRY(supervisor->wait_idle(kReadyMs));
  supervisor->options_.num_workers = num_workers;
  return supervisor;
}

// Many machines forbid what bubblewrap needs; the filter of system calls remains. This is found out once, at the start:
// a fork server that is started again never has fewer limits than the first. Asked twice, as a machine that is short of
// processes refuses it too. A pack that cannot be loaded fails without it as well.
Result<> Supervisor::start_bare_or_sandboxed() {
  auto started = start_fork_server();
  if (started.ok() || options_.bubblewrap.empty() || started.error().kind == ErrorKind::kConfig) return started;
  started = start_fork_server();
  if (started.ok()) return {};
  options_.bubblewrap.clear();
  options_.without = "bubblewrap cannot be used here";
  TRY(start_fork_server());
  log_debug(fmt::format("{}: {}", options_.without, started.error().to_string()));
  return {};
}

Result<std::unique_ptr<ForkServerClient>> Supervisor::start_client() {
  return ForkServerClient::start(options_.program, options_.bubblewrap, load_, system_);
}

Result<> Supervisor::start_fork_server() {
  slots_.clear();
  fork_server_.reset();
  fork_server_ = TRY(start_client());
  if (fork_server_->loaded().num_threads > 1 && !load_.load_in_worker) {
    load_.load_in_worker = true;
    fork_server_.reset();
    fork_server_ = TRY(start_client());
  }
  lost_.reset();
  return {};
}

std::string Supervisor::limits_text() const {
  const WorkerLimits& limits = load_.limits;
  std::string text = fork_server_->loaded().limits;
  if (!options_.bubblewrap.empty()) {
    text += "; in bubblewrap: sees no other processes";
    if (!limits.network) text += ", has no network";
    if (!limits.write_files) text += ", finds all files read-only";
  } else if (!options_.without.empty()) {
    text += "; " + options_.without;
  }
  return text;
}

Result<> Supervisor::add_slot() {
  auto [ours, theirs] = TRY(Channel::pair(system_));
  auto slot = std::make_unique<Slot>();
  slot->id = next_id_++;
  slot->asked_ns = system_.monotonic_ns();
  slot->channel = std::move(ours);
  if (const auto asked = fork_server_->fork_worker(slot->id, theirs.take_socket()); !asked.ok()) {
    lose(asked.error());
    return {};
  }
  slots_.push_back(std::move(slot));
  return {};
}

void Supervisor::lose(const Error& why) {
  if (!lost_) lost_ = why;
}

Result<> Supervisor::fill() {
  while (!lost_ && slots_.size() < num_wanted() && starts_.may_try(system_.monotonic_ns())) {
    auto added = add_slot();
    if (added.ok()) continue;
    starts_.fail(system_.monotonic_ns());
    start_error_ = std::move(added).error();
  }
  const bool has_any = std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->ready; });
  if (has_any || !start_error_ || starts_.failing_ms(system_.monotonic_ns()) < kNoWorkerMs) return {};
  return Error{start_error_->kind,
               fmt::format("no worker could be started for {} s: {}", kNoWorkerMs / 1000, start_error_->what),
               load_.identity.label, start_error_->next};
}

Slot* Supervisor::idle_slot() const {
  const auto busy = std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->busy; });
  if (busy >= std::max(options_.num_workers, 1)) return nullptr;
  for (const auto& slot : slots_) {
    if (slot->ready && !slot->busy) return slot.get();
  }
  return nullptr;
}

Result<Slot*> Supervisor::wait_idle(int timeout_ms) {
  const int64_t deadline = system_.monotonic_ns() + int64_t{timeout_ms} * kMsInNs;
  while (true) {
    if (lost_) TRY(restart());
    if (Slot* const slot = idle_slot()) return slot;
    const int64_t left_ms = (deadline - system_.monotonic_ns()) / kMsInNs;
    if (left_ms <= 0) {
      return Error{ErrorKind::kPlugin, fmt::format("no worker was ready within {} ms", timeout_ms),
                   load_.identity.label,
                   start_error_ ? start_error_->to_string() : "look at what its create() waits for"};
    }
    TRY(wait(static_cast<int>(left_ms)));
    if (!lost_) TRY(turn_starting_slots());
  }
}

// What those say that are not ready yet, and the end of those that never will be.
Result<> Supervisor::turn_starting_slots() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.ready || slot.busy) continue;
    auto frame = receive(slot, 0);
    for (; frame.ok() && *frame; frame = receive(slot, 0)) TRY(take_message(slot, **frame));
    if (frame.ok() && (slot.ready || !has_ended(slot))) continue;
    if (!frame.ok()) last_end_ = frame.error().to_string();
    end(slot);
    return lost_ ? Result<>() : replace(slot);  // slots_ has changed; the others have their turn next time
  }
  return {};
}

Result<> Supervisor::wait(int timeout_ms) {
  if (lost_) return {};
  TRY(fill());
  if (lost_) return {};
  std::vector<pollfd> entries{{fork_server_->fd(), POLLIN, 0}};
  for (const auto& slot : slots_) entries.push_back({slot->channel.fd(), POLLIN, 0});
  if (slots_.size() < num_wanted()) {  // one is missing: request it again in time
    const int64_t pause_ms = starts_.wait_ms(system_.monotonic_ns());
    if (timeout_ms < 0 || pause_ms < timeout_ms) timeout_ms = static_cast<int>(pause_ms);
  }
  if (system_.poll(entries.data(), entries.size(), timeout_ms) <= 0 || entries.front().revents == 0) return {};
  if (const auto pumped = fork_server_->pump(0); !pumped.ok()) lose(pumped.error());
  return {};
}

void Supervisor::refuse(Slot& slot, const std::string& what) {
  slot.stray = Error{ErrorKind::kPlugin,
                     what +
                         " came from its worker: its code forked and the child returned, or it wrote to a file "
                         "descriptor that it had not opened",
                     load_.identity.label, "end a forked child with _exit(0)"};
  log_warn(fmt::format("{}; another worker takes its place", slot.stray->to_string()));
}

Result<std::optional<Frame>> Supervisor::receive(Slot& slot, int timeout_ms) {
  if (slot.stray) return *slot.stray;
  auto received = slot.channel.receive(timeout_ms);
  if (slot.channel.sent_rubbish()) refuse(slot, "bytes that are not a message");
  if (received.ok() && received->has_value()) {
    const Frame& frame = **received;
    if (slot.process == 0) slot.process = frame.process;
    if (frame.process != slot.process) {
      refuse(slot, "a message of another process");
    } else if (is_answer(frame.kind) && frame.request != slot.channel.request()) {
      refuse(slot, "an answer to another request");
    }
  }
  if (slot.stray) return *slot.stray;
  return received;
}

Result<> Supervisor::take_message(Slot& slot, const Frame& frame) {
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
  if (frame.kind == kError) {
    Error error = decode_error(frame.body);
    if (!was_ready_) return error;
    last_end_ = error.to_string();  // the worker ends next, and another is tried
    return {};
  }
  if (frame.kind != kReady || slot.ready) {
    refuse(slot, fmt::format("a message that nobody asked for (kind {})", frame.kind));
    return {};
  }
  TRY(decode(frame.body, ready_));
  slot.ready = was_ready_ = true;
  num_failed_starts_ = 0;
  last_end_.clear();
  starts_.succeed();
  start_error_.reset();
  return {};
}

bool Supervisor::has_ended(const Slot& slot) const {
  if (lost_ || slot.stray || slot.channel.closed() || fork_server_->fate(slot.id)) return true;
  return !slot.ready && system_.monotonic_ns() - slot.asked_ns > kReadyMs * kMsInNs;
}

WorkerEnd Supervisor::end(Slot& slot) {
  WorkerEnd ended = kill_and_ask(slot);
  if (!slot.ready && last_end_.empty()) last_end_ = ended.text;  // an error of create() says more than an exit code
  return ended;
}

WorkerEnd Supervisor::kill_and_ask(const Slot& slot) {
  if (lost_) return {kLostText};
  // A plugin may have closed the connection. Its worker ends on its own then, and finishes its row before.
  if (slot.channel.closed()) wait_for_fate(slot, kOwnEndMs);
  if (!lost_ && !fork_server_->fate(slot.id)) {
    if (const auto killed = fork_server_->kill_worker(slot.id); !killed.ok()) lose(killed.error());
  }
  wait_for_fate(slot, kExitReportMs);
  const std::optional<WorkerFate> fate = fork_server_->fate(slot.id);
  if (!fate) return {lost_ ? kLostText : "no known cause"};
  if (fate->fork_error != 0) return {std::string("fork failed: ") + std::strerror(fate->fork_error)};
  return {describe_exit(fate->status), WIFSIGNALED(fate->status) ? WTERMSIG(fate->status) : 0};
}

void Supervisor::wait_for_fate(const Slot& slot, int64_t timeout_ms) {
  const int64_t deadline = system_.monotonic_ns() + timeout_ms * kMsInNs;
  while (!lost_ && !fork_server_->fate(slot.id) && system_.monotonic_ns() < deadline) {
    if (const auto pumped = fork_server_->pump(10); !pumped.ok()) lose(pumped.error());
  }
}

Result<> Supervisor::replace(Slot& slot) {
  if (lost_) return {};  // restart() forgets all of them
  const std::optional<WorkerFate> fate = fork_server_->fate(slot.id);
  const bool was_ready = slot.ready;
  fork_server_->forget(slot.id);
  std::erase_if(slots_, [&](const auto& other) { return other.get() == &slot; });
  if (fate && fate->fork_error != 0) {
    starts_.fail(system_.monotonic_ns());
    start_error_ = Error{ErrorKind::kPlugin, std::string("fork failed: ") + std::strerror(fate->fork_error),
                         load_.identity.label, resource_advice(fate->fork_error, "")};
  } else if (!was_ready) {
    TRY(note_failed_start());
  }
  return fill();
}

Result<> Supervisor::note_failed_start() {
  starts_.fail(system_.monotonic_ns());
  const std::string end = std::exchange(last_end_, "");
  if (++num_failed_starts_ < (was_ready_ ? kMaxFailedStarts : 3)) return {};
  const std::string memory = memory_setting(load_.limits);
  return Error{ErrorKind::kPlugin,
               fmt::format("{} workers in a row ended before they were ready, the last by {}", num_failed_starts_, end),
               load_.identity.label,
               "look at create() of the plugin" + (memory.empty() ? "" : "; its memory: " + memory)};
}

Result<> Supervisor::restart() {
  while (true) {
    const size_t deaths = deaths_.add(system_.monotonic_ns());
    if (deaths > kMaxServerDeaths) {
      return Error{ErrorKind::kPlugin,
                   fmt::format("the fork server of its workers has ended {} times within {} s, the last time: {}",
                               deaths, kDeathWindowMs / 1000, lost_ ? lost_->what : ""),
                   load_.identity.label, "see the system's log for who killed it; the usual cause is memory"};
    }
    if (deaths > 1) system_.sleep_ms(kRestartPauseMs << (deaths - 2));
    auto started = start_fork_server();
    if (started.ok()) return fill();
    lost_ = std::move(started).error();
  }
}

}  // namespace mortise
