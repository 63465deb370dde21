// SimMachine: a fork server and workers as events of a SimSystem. They speak the real protocol over real channels and
// write their rewards into the real output areas. Only their processes and the time that they take are simulated.
//
// The completion of a row says what happens to it: "ok...", "crash", "hang", "fail", "take50" (it takes 50 ms exactly),
// "polite50" (it ends 50 ms after it was told to). Its reward is a function of its text and its number, so that no wrong
// score can look right. Faults of the machine hit any row, until `quiet`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "plugin/host/kinds/reward.h"
#include "sim_system.h"

namespace mortise::test {

struct SimFaults {               // chances
  double refusal = 0;            // a system call of the trainer for memory or a descriptor
  double fork_fails = 0;         // EAGAIN or ENOMEM
  double server_dies = 0;        // at a message that it gets
  double worker_dies = 0;        // at a row: before, amid, between its report and its mark, or after
  double start_fails = 0;        // a worker ends, fails or hangs before it is ready
  int64_t quiet_ns = INT64_MAX;  // no faults from then on
  [[nodiscard]] bool any() const { return refusal + fork_fails + server_dies + worker_dies + start_fails > 0; }
};

struct SimReward {
  Granularity granularity = Granularity::kRow;
  bool has_state = false;
  bool starts_threads = false;  // when its pack is loaded
  int64_t slowest_row_ns = 1'000'000;
  int64_t start_ns = 0;  // that a worker takes to get ready; 0: a random time
};

double sim_reward(std::string_view completion, int64_t row);

class SimServer;

class SimMachine {
 public:
  SimMachine(SimClock& clock, const SimFaults& faults, const SimReward& reward);
  ~SimMachine();

  SimClock& clock;
  SimSystem system{clock};
  SimPeerSystem peers{clock};
  const SimFaults faults;
  const SimReward reward;
  // How often a call for the row was begun, by step and row of the batch.
  std::map<std::pair<int64_t, int64_t>, int> calls_begun;
  // The rows of calls that a fault of the machine, and not the reward, ended.
  std::set<std::pair<int64_t, int64_t>> hit_by_machine;

  // Whether a fault of the machine happens now.
  bool strikes(double chance) { return clock.now_ns() < faults.quiet_ns && clock.chance(chance); }
  [[nodiscard]] size_t num_living() const;  // servers and workers
  [[nodiscard]] int64_t num_server_deaths() const { return num_server_deaths_; }
  void count_server_death() { ++num_server_deaths_; }
  void wake_all();

 private:
  pid_t spawn(Fd socket);

  std::map<pid_t, std::shared_ptr<SimServer>> servers_;
  pid_t next_pid_ = 1000;
  int64_t num_server_deaths_ = 0;
};

}  // namespace mortise::test
