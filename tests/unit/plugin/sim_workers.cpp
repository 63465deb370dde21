// The simulated workers: they answer, crash and hang as the seed says.
#include "sim_workers.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "plugin/worker/batch_area.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/shared_memory.h"

namespace mortise::test {

double sim_reward(std::string_view completion, int64_t row) {
  return static_cast<double>(std::hash<std::string_view>()(completion) % 1'000'003) + 1e-3 * static_cast<double>(row);
}

// One worker process.
class SimWorker : public std::enable_shared_from_this<SimWorker> {
 public:
  SimWorker(SimMachine& machine, Fd socket, std::function<void(int)> on_end)
      : machine_(machine), channel_(std::move(socket), machine.peers), on_end_(std::move(on_end)) {}

  void start() {
    if (machine_.strikes(machine_.faults.start_fails)) {
      const int64_t how = machine_.clock.uniform(0, 2);
      if (how == 0) return later(1, 5'000'000, [this] { die(SIGKILL); });
      if (how == 1) return later(1, 5'000'000, [this] { fail_create(); });
      return;  // hangs in create()
    }
    const int64_t exact = machine_.reward.start_ns;
    later(exact > 0 ? exact : 100'000, exact > 0 ? exact : 30'000'000, [this] { get_ready(); });
  }
  void wake() {
    if (!is_alive_ || !is_ready_ || is_working_) return;
    while (true) {
      auto frame = channel_.receive(0);
      if (!frame.ok() || (!*frame && channel_.closed())) return die(0);
      if (!*frame) return;
      answer(**frame);
      if (!is_alive_ || is_working_) return;
    }
  }
  void die(int status) {
    if (!is_alive_) return;
    is_alive_ = false;
    channel_ = Channel();
    on_end_(status);
  }
  [[nodiscard]] bool is_alive() const { return is_alive_; }

 private:
  // After a random time; nothing if the process has ended by then.
  void later(int64_t low_ns, int64_t high_ns, std::function<void()> event) {
    machine_.clock.after(machine_.clock.uniform(low_ns, high_ns), [self = shared_from_this(), event] {
      if (self->is_alive_) event();
    });
  }
  void send(uint32_t kind, std::string_view body) {
    if (!channel_.send(kind, body).ok()) die(0);
  }
  void fail_create() {
    send(kError, encode(Error{ErrorKind::kPlugin, "no memory for the instance", "sim", ""}));
    die(0);
  }
  void get_ready() {
    is_ready_ = true;
    ReadyMessage ready;
    ready.granularity = static_cast<int64_t>(machine_.reward.granularity);
    ready.has_state = machine_.reward.has_state;
    ready.state = "0";
    send(kReady, encode(ready));
    wake();
  }

  void answer(Frame& frame) {
    if (frame.kind == kSaveState) return send(kState, encode(StateMessage{true, std::to_string(num_scored_)}));
    if (frame.kind == kLoadState) {
      num_scored_ = std::stoll(frame.body);
      return send(kState, encode(StateMessage{}));
    }
    if (frame.kind == kPiece && take_piece(frame)) return next_call(0);
    die(SIGABRT);
  }
  bool take_piece(Frame& frame) {
    if (!decode(frame.body, piece_).ok()) return false;
    size_t next = 0;
    if (piece_.new_block) block_ = std::move(frame.fds.at(next++));
    if (piece_.new_area) {
      auto rows = SharedMemory::map(block_, piece_.area_offset, piece_.area_size, SharedMemory::Peer::kReads);
      if (!rows.ok()) return false;
      rows_ = std::move(*rows);
      auto view = BatchView::open({rows_.data(), piece_.area_size});
      if (!view.ok()) return false;
      view_ = std::move(*view);
    }
    if (piece_.new_output) {
      auto output = SharedMemory::map(frame.fds.at(next++), 0, piece_.output_bytes, SharedMemory::Peer::kWrites);
      if (!output.ok()) return false;
      output_ = std::move(*output);
      area_ = OutputArea(output_.data(), output_.size(), static_cast<size_t>(piece_.output_rows));
    }
    is_working_ = true;
    return true;
  }

  [[nodiscard]] int64_t rows_per_call() const {
    return machine_.reward.granularity == Granularity::kRow ? 1 : piece_.count;
  }
  std::string_view text_of(int64_t row) {
    const mortise_reward_in& in = view_.slice(piece_.first + row, 1);
    return {in.completion.bytes, in.completion.offsets[1] - in.completion.offsets[0]};
  }
  std::pair<int64_t, int64_t> key_of(int64_t row) {
    const mortise_reward_in& in = view_.slice(piece_.first + row, 1);
    return {in.step, in.row_id[0]};
  }
  bool any_is(int64_t row, std::string_view what) {
    for (int64_t i = row; i < row + rows_per_call(); ++i) {
      if (text_of(i) == what) return true;
    }
    return false;
  }
  void killed_by_machine(int64_t row) {
    for (int64_t i = row; i < row + rows_per_call(); ++i) machine_.hit_by_machine.insert(key_of(i));
    die(SIGKILL);
  }

  void next_call(int64_t row) {
    if (row >= piece_.count) {
      send(kDone, {});
      is_working_ = false;
      return later(1'000, 50'000, [this] { wake(); });
    }
    const bool is_late = piece_.deadline_ns > 0 && machine_.clock.now_ns() >= piece_.deadline_ns;
    if (is_late || area_.head->cancelled.load()) {
      RowMessage report;
      report.first = row;
      report.count = rows_per_call();
      report.call_error = "not scored: too late or stopped";
      return finish_call(row, report);
    }
    if (machine_.strikes(machine_.faults.worker_dies)) return killed_by_machine(row);  // between two calls
    area_.head->started_ns.store(machine_.clock.now_ns());
    area_.head->at_hand.store(row);
    for (int64_t i = row; i < row + rows_per_call(); ++i) ++machine_.calls_begun[key_of(i)];
    if (any_is(row, "hang")) return;
    const std::string text(text_of(row));
    if (text.starts_with("take")) return after_ms(std::atoll(text.c_str() + 4), [this, row] { score(row); });
    if (text.starts_with("polite")) return end_when_told(row, std::atoll(text.c_str() + 6));
    const bool crashes = any_is(row, "crash"), struck = machine_.strikes(machine_.faults.worker_dies);
    later(10'000, machine_.reward.slowest_row_ns, [this, row, crashes, struck] {
      if (crashes) return die(SIGSEGV);
      if (struck) return killed_by_machine(row);
      score(row);
    });
  }
  void after_ms(int64_t ms, std::function<void()> event) { later(ms * kSimMs, ms * kSimMs, std::move(event)); }
  void end_when_told(int64_t row, int64_t ms) {
    if (area_.head->cancelled.load()) return after_ms(ms, [this, row] { score(row); });
    after_ms(1, [this, row, ms] { end_when_told(row, ms); });
  }
  void score(int64_t row) {
    RowMessage report;
    report.first = row;
    report.count = rows_per_call();
    for (int64_t i = 0; i < report.count; ++i) {
      if (text_of(row + i) == "fail") {
        report.failed_rows.push_back({i, MORTISE_INVALID_ARGUMENT, "cannot parse"});
        area_.rewards[row + i] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      const int64_t id = key_of(row + i).second;
      area_.rewards[row + i] = sim_reward(text_of(row + i), id);
      report.values.push_back({i, "id", static_cast<double>(id)});
    }
    num_scored_ += report.count;
    finish_call(row, report);
  }
  void finish_call(int64_t row, const RowMessage& report) {
    send(kRow, encode(report));
    if (machine_.strikes(machine_.faults.worker_dies)) return killed_by_machine(row);  // the report is sent, no mark is
    for (int64_t i = row; i < row + report.count; ++i) area_.done[i].store(1);
    if (machine_.strikes(machine_.faults.worker_dies)) return die(SIGKILL);  // the mark stands, at_hand does too
    area_.head->at_hand.store(-1);
    if (is_alive_) later(100, 1'000, [this, next = row + report.count] { next_call(next); });
  }

  SimMachine& machine_;
  Channel channel_;
  std::function<void(int)> on_end_;
  bool is_alive_ = true, is_ready_ = false, is_working_ = false;
  int64_t num_scored_ = 0;  // its state
  PieceMessage piece_;
  Fd block_;
  SharedMemory rows_, output_;
  BatchView view_;
  OutputArea area_;
};

// The fork server's process.
class SimServer : public std::enable_shared_from_this<SimServer> {
 public:
  SimServer(SimMachine& machine, Fd socket) : machine_(machine), channel_(std::move(socket), machine.peers) {}

  void start() {
    later(100'000, 20'000'000, [this] {
      if (machine_.strikes(machine_.faults.server_dies)) return die();
      send(kHello, encode(HelloMessage{kProtocol, MORTISE_ABI_MINOR}));
      wake();
    });
  }
  void wake() {
    while (is_alive_) {
      auto frame = channel_.receive(0);
      if (!frame.ok() || (!*frame && channel_.closed())) return die();
      if (!*frame) break;
      if (machine_.strikes(machine_.faults.server_dies)) {
        machine_.count_server_death();
        return die();
      }
      answer(**frame);
    }
    for (const auto& [id, worker] : workers_) worker->wake();
  }
  // Its workers hear of it a little later.
  void die() {
    if (!is_alive_) return;
    is_alive_ = false;
    channel_ = Channel();
    for (const auto& [id, worker] : workers_) {
      machine_.clock.after(machine_.clock.uniform(0, 2'000'000), [worker = worker] { worker->die(SIGKILL); });
    }
  }
  [[nodiscard]] bool is_alive() const { return is_alive_; }
  [[nodiscard]] size_t num_living() const {
    const auto living =
        std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second->is_alive(); });
    return static_cast<size_t>(living) + (is_alive_ ? 1 : 0);
  }

 private:
  void later(int64_t low_ns, int64_t high_ns, std::function<void()> event) {
    machine_.clock.after(machine_.clock.uniform(low_ns, high_ns), [self = shared_from_this(), event] {
      if (self->is_alive_) event();
    });
  }
  void send(uint32_t kind, std::string_view body) {
    if (!channel_.send(kind, body).ok()) die();
  }
  void answer(Frame& frame) {
    if (frame.kind == kLoad) {
      LoadMessage load;
      if (!decode(frame.body, load).ok()) return die();
      LoadedMessage loaded;
      loaded.num_threads = machine_.reward.starts_threads && !load.load_in_worker ? 2 : 1;
      loaded.limits = "simulated";
      return later(100'000, 50'000'000, [this, loaded] { send(kLoaded, encode(loaded)); });
    }
    WorkerMessage asked;
    if (!decode(frame.body, asked).ok()) return die();
    if (frame.kind == kFork) return fork(asked.worker, std::move(frame.fds.at(0)));
    const auto it = workers_.find(asked.worker);
    if (it == workers_.end()) return;
    later(1'000, 200'000, [worker = it->second] { worker->die(SIGKILL); });
  }
  void fork(int64_t number, Fd socket) {
    if (machine_.strikes(machine_.faults.fork_fails)) {
      const int code = machine_.clock.chance(0.5) ? EAGAIN : ENOMEM;
      return send(kForkFailed, encode(ForkFailedMessage{number, code}));
    }
    const std::weak_ptr<SimServer> self = weak_from_this();
    auto worker = std::make_shared<SimWorker>(machine_, std::move(socket), [self, number](int status) {
      if (const auto server = self.lock()) {
        server->later(1'000, 1'000'000, [server = server.get(), number, status] {
          server->send(kExited, encode(ExitedMessage{number, status}));
          server->workers_.erase(number);
        });
      }
    });
    workers_[number] = worker;
    worker->start();
  }

  SimMachine& machine_;
  Channel channel_;
  bool is_alive_ = true;
  std::map<int64_t, std::shared_ptr<SimWorker>> workers_;
};

SimMachine::SimMachine(SimClock& shared, const SimFaults& given, const SimReward& kind)
    : clock(shared), faults(given), reward(kind) {
  system.on_spawn = [this](Fd socket) { return spawn(std::move(socket)); };
  system.on_kill = [this](pid_t pid) {
    if (const auto it = servers_.find(pid); it != servers_.end()) it->second->die();
  };
  system.has_ended = [this](pid_t pid) {
    wake_all();  // those that the trainer has hung up on notice it
    return !servers_.at(pid)->is_alive();
  };
  system.on_send = [this] { clock.after(clock.uniform(1'000, 2'000'000), [this] { wake_all(); }); };
  system.refusal = given.refusal;
  system.refusals_end_ns = given.quiet_ns;
}

SimMachine::~SimMachine() = default;

pid_t SimMachine::spawn(Fd socket) {
  auto server = std::make_shared<SimServer>(*this, std::move(socket));
  servers_[next_pid_] = server;
  server->start();
  return next_pid_++;
}

size_t SimMachine::num_living() const {
  size_t count = 0;
  for (const auto& [pid, server] : servers_) count += server->num_living();
  return count;
}

void SimMachine::wake_all() {
  for (const auto& [pid, server] : servers_) server->wake();
}

}  // namespace mortise::test
