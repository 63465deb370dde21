// What a rank tells the others about itself through the store of the group, several times a second.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "foundation/base/cpus.h"

namespace mortise {

enum class RankStatus : int {
  kRunning = 0,
  kFailed = 1,   // it ended with an error of its own
  kStopped = 2,  // it ended because another rank failed
  kLeft = 3,     // its run is done; it waits for the others
  kGone = 4,     // it has seen that all ranks are done
};

// Ranks of the run that a call concerns: first, first + step, ... A count of 0: all ranks, in the order of calls that
// all of them share.
struct RankSet {
  int first = 0, step = 1, count = 0;
  bool is_aside = false;  // a thread of its own waits in the call (Communicator::side_group), and others may compute
  [[nodiscard]] bool is_part() const { return count > 0; }
  [[nodiscard]] bool has(int rank) const {
    return !is_part() || (rank >= first && (rank - first) % step == 0 && (rank - first) / step < count);
  }
  bool operator==(const RankSet&) const = default;
};

struct RankState {
  int64_t beats = 0;  // grows with each message
  int64_t calls = 0;  // collectives that it has begun
  int64_t step = 0;
  bool waits = false;  // inside a collective
  RankStatus status = RankStatus::kRunning;
  std::string stage;
  std::string error;          // the error of kFailed
  RankSet awaits = {};        // ranks of the collective in which it waits
  std::string progress = {};  // own_progress() (metrics/rank_progress.h)
  int stop_signal = 0;        // SIGINT or SIGTERM, if it or another rank got one
  bool operator==(const RankState&) const = default;
};

std::string encode(const RankState& state);
std::optional<RankState> decode_rank_state(std::string_view text);

// "in 'rollout' of step 12".
std::string place_text(const RankState& state);

// A process of the group, for ranks on the same machine.
struct RankProcess {
  std::string machine;      // the same text for processes that can see each other; empty if unknown
  std::string network;      // the same text for processes that share a loopback interface; empty if unknown
  std::string host;         // for people
  int64_t pid = 0;          // 0 if unknown
  int64_t start_ticks = 0;  // a process id may be used again: the start tells them apart
  int size = 0;             // size of the group, by that process's environment
  std::string cpus;         // the processors that it may use, as "0-3,8"; empty if unknown
  std::string cpu_group;    // the same text for processes that share a quota of CPU time; empty without one
  bool operator==(const RankProcess&) const = default;
};

// Without cpu_group.
RankProcess describe_process(int64_t pid, int size);
RankProcess this_process(int size);
std::string encode(const RankProcess& process);
std::optional<RankProcess> decode_rank_process(std::string_view text);

// Those on the machine of `self` that may use the same processors, or share its quota, with `self`.
ProcessesHere processes_here(std::span<const RankProcess> processes, const RankProcess& self);

// True if this machine runs it no more. False if it is on another machine, or that cannot be told.
bool has_ended(const RankProcess& process, const RankProcess& self);

}  // namespace mortise
