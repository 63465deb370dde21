// Meets the other ranks at the store, exchanges who they are, and makes the communicator.
#include "dist/join.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "dist/gloo/c10d_store.h"
#include "dist/gloo/gloo_communicator.h"
#include "dist/launch/local_address.h"
#include "dist/one_process.h"
#include "dist/watch/rank_state.h"
#include "dist/watch/rank_watch.h"
#include "foundation/base/cpus.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"

namespace mortise {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The store has just been reached: if it cannot be reached again, its rank has died.
constexpr milliseconds kSecondConnection{10'000};
// How long a rank waits for others before it says so.
constexpr milliseconds kQuietWait{10'000};

std::string join_key(int rank) { return fmt::format("join/{}", rank); }
// Why a rank gave up while the ranks joined. Later, its watch tells the others.
std::string gave_up_key(int rank) { return fmt::format("gave_up/{}", rank); }

double seconds_of(milliseconds time) { return std::chrono::duration<double>(time).count(); }

// At least enough for one try.
milliseconds left_until(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

constexpr const char* kJoinStage = "start";

Error join_error(const std::string& what, const std::string& next) {
  return {ErrorKind::kRankFailure, what, kJoinStage, next};
}

// Often enough to say where a rank is; less often in large groups, where each beat is a message of every rank's state to
// every rank.
milliseconds beat_of(int size, const RanksConfig& config) {
  const milliseconds wanted(std::clamp(4 * size, 250, 2000));
  return std::min(wanted, std::max(milliseconds(20), config.answer_timeout / 4));
}

StorePlace store_place(const RankPlace& place, const RanksConfig& config) {
  StorePlace store;
  store.address = place.address;
  store.port = place.port;
  store.serve = place.rank == 0 && !place.store_served;
  store.file = config.store_file.value_or("");
  store.size = 2 * place.size;  // connections: each rank has two
  store.prefix = "mortise/" + place.attempt;
  return store;
}

std::string store_text(const StorePlace& store) {
  return store.file.empty() ? fmt::format("{}:{}", store.address, store.port) : store.file;
}

// Two processes with one rank would wait for each other, and an old file would answer with an old run's keys.
Result<> claim_rank(RankStore& store, const RankPlace& place, const StorePlace& where) {
  const auto count = TRY(store.add(fmt::format("claim/{}", place.rank), 1));
  if (count == 1) return {};
  if (!where.file.empty())
    return join_error(fmt::format("{} belongs to an earlier run, or two processes are rank {}", where.file, place.rank),
                      "delete the file, and start all ranks again");
  return join_error(
      fmt::format("two processes say that they are rank {} of {} at {}:{}", place.rank, place.size, where.address,
                  where.port),
      fmt::format("give every process its own rank ({}), or choose another MASTER_PORT if another run uses this one",
                  place.launcher));
}

// An Error if one of the ranks that have come has ended: the others would wait for it until their limits. It can be seen
// on this machine only.
Result<> check_arrived(RankStore& store, const RankPlace& place) {
  const RankProcess self = this_process(place.size);
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank || !TRY(store.has(join_key(rank)))) continue;
    const std::vector<std::string> texts = TRY(store.get_all({join_key(rank)}));
    const auto process = decode_rank_process(texts.front());
    if (!process || !has_ended(*process, self)) continue;
    std::string how = "was killed or crashed while the ranks joined";
    if (TRY(store.has(gave_up_key(rank))))
      how = "ended while the ranks joined, with an error: " + TRY(store.get_all({gave_up_key(rank)})).front();
    return join_error(fmt::format("rank {} (process {}) {}", rank, process->pid, how),
                      fmt::format("look into the log of rank {}, then start the run again", rank));
  }
  return {};
}

// The ranks that have not come, as "rank 1, rank 2".
struct AbsentRanks {
  int count = 0;
  std::string names;
};

Result<AbsentRanks> absent_ranks(RankStore& store, int size) {
  constexpr int kMaxNamed = 16;
  AbsentRanks absent;
  for (int rank = 0; rank < size; ++rank) {
    if (TRY(store.has(join_key(rank)))) continue;
    if (++absent.count > kMaxNamed + 1) continue;
    absent.names += absent.count == 1 ? "" : ", ";
    absent.names += absent.count > kMaxNamed ? "..." : fmt::format("rank {}", rank);
  }
  return absent;
}

Result<> wait_for_all(RankStore& store, const RankPlace& place, const RanksConfig& config, Clock::time_point deadline,
                      const std::string& where) {
  constexpr int kLooksPerCheck = 25;  // every half second
  int num_looks = 0;
  Clock::time_point tell_at = Clock::now() + std::min<Clock::duration>(kQuietWait, (deadline - Clock::now()) / 4);
  const std::string limit = format_f64(seconds_of(config.join_timeout));
  for (int rank = 0; rank < place.size; ++rank) {
    while (!TRY(store.has(join_key(rank)))) {
      if (Clock::now() > tell_at) {
        tell_at = Clock::time_point::max();
        const AbsentRanks absent = TRY(absent_ranks(store, place.size));
        if (absent.count == 0) continue;  // they have come just now
        log_info(fmt::format("waiting for {} of {} ranks to come to {}, at most {} s (ranks.join_timeout): {}",
                             absent.count, place.size, where, limit, absent.names));
      }
      if (Clock::now() > deadline) {
        const AbsentRanks absent = TRY(absent_ranks(store, place.size));
        if (absent.count == 0) break;  // they have come just now
        return join_error(fmt::format("{} of {} ranks did not come to {} within {} s: {}", absent.count, place.size,
                                      where, limit, absent.names),
                          "look into the logs of these ranks, or raise ranks.join_timeout");
      }
      std::this_thread::sleep_for(milliseconds(20));
      if (++num_looks % kLooksPerCheck == 0) TRY(check_arrived(store, place));
    }
  }
  return {};
}

Result<std::vector<RankProcess>> processes_of_all(RankStore& store, const RankPlace& place) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < place.size; ++rank) keys.push_back(join_key(rank));
  std::vector<RankProcess> processes;
  for (const std::string& text : TRY(store.get_all(keys))) {
    const auto process = decode_rank_process(text);
    if (!process || process->size != place.size)
      return join_error(fmt::format("rank {} was started in a group of {}, this rank ({}) in one of {}",
                                    processes.size(), process ? process->size : 0, place.rank, place.size),
                        "start every rank with the same size and the same program");
    processes.push_back(*process);
  }
  return processes;
}

Result<std::vector<RankProcess>> meet(RankStore& store, const RankPlace& place, const RanksConfig& config,
                                      Clock::time_point deadline, const StorePlace& where) {
  TRY(claim_rank(store, place, where));
  if (place.rank == 0) TRY(store.set(kVerdictKey, kNoVerdict));
  RankState start;
  start.stage = "start";
  TRY(store.set(state_key(place.rank), encode(start)));
  TRY(store.set(join_key(place.rank), encode(this_process(place.size))));
  TRY(wait_for_all(store, place, config, deadline, store_text(where)));
  return processes_of_all(store, place);
}

// Why the host of the store cannot be found; empty if it can, or if the store is a file. Without a name server the answer
// takes as long as the system waits for one.
std::string host_problem(const StorePlace& where) {
  if (!where.file.empty()) return {};
  const std::string problem = lookup_problem(where.address);
  return problem.empty() ? "" : fmt::format("the name {} has no address: {}", quote(where.address), problem);
}

// A cluster may publish the name after the process has started. Until then, the terminal shows what the rank waits for.
void warn_of_unknown_host(const std::string& problem, const RanksConfig& config) {
  if (problem.empty()) return;
  log_warn(
      fmt::format("{}; this rank looks for it for {} s (ranks.join_timeout). It is the host of rank 0, from "
                  "MASTER_ADDR or the launcher",
                  problem, format_f64(seconds_of(config.join_timeout))));
}

// `problem`: host_problem() when the rank began.
Error unreachable(const Error& error, const std::string& problem, const RankPlace& place, const StorePlace& where,
                  const RanksConfig& config) {
  if (!problem.empty())
    return join_error(
        fmt::format("rank {} did not find the host of the store at {} within {} s: {} (when the rank "
                    "began); the last try: {}",
                    place.rank, store_text(where), format_f64(seconds_of(config.join_timeout)), problem, error.what),
        "set MASTER_ADDR to the name or the address of rank 0's host");
  if (where.serve)
    return join_error(fmt::format("rank 0 cannot serve the store at {}: {}", store_text(where), error.what),
                      "choose another MASTER_PORT for all ranks");
  return join_error(fmt::format("rank {} did not reach the store at {} within {} s: {}", place.rank, store_text(where),
                                format_f64(seconds_of(config.join_timeout)), error.what),
                    "check MASTER_ADDR, MASTER_PORT and that rank 0 runs");
}

// A store that another process serves ends with it, for example with a rank 0 that gave up.
Error joining_failed(Error error, const RankPlace& place, const StorePlace& where) {
  if (error.where == kJoinStage || where.serve || !where.file.empty()) return error;
  return join_error(
      fmt::format("{} has closed its connections while the ranks joined: {}",
                  place.store_served ? "the store at " + store_text(where)
                                     : fmt::format("rank 0, which serves the store at {},", store_text(where)),
                  error.what),
      place.store_served ? "look into the launcher's log, then start the run again"
                         : "look into the log of rank 0, then start the run again");
}

// The interface through which this machine reaches the store is one that all ranks share. A host's own name often
// belongs to a loopback address, which other machines cannot reach.
std::string address_of(const std::vector<RankProcess>& processes, const StorePlace& where) {
  const std::string& network = processes.front().network;
  const bool one_machine =
      !network.empty() &&
      std::all_of(processes.begin(), processes.end(), [&](const RankProcess& one) { return one.network == network; });
  if (one_machine) return "127.0.0.1";
  return where.file.empty() ? address_toward(where.address, where.port) : std::string();
}

Result<std::unique_ptr<Communicator>> join_group(const RankPlace& place, const RanksConfig& config) {
  StorePlace where = store_place(place, config);
  const milliseconds timeout = config.join_timeout;
  const Clock::time_point deadline = Clock::now() + timeout;  // for the store and all ranks together
  const std::string problem = host_problem(where);
  warn_of_unknown_host(problem, config);
  auto store = connect_store(where, left_until(deadline), timeout);
  if (!store.ok()) return unreachable(store.error(), problem, place, where, config);
  auto processes = meet(**store, place, config, deadline, where);
  if (!processes.ok()) {
    static_cast<void>((*store)->set(gave_up_key(place.rank), processes.error().to_string()));
    return joining_failed(std::move(processes).error(), place, where);
  }
  set_processes_here(processes_here(*processes, (*processes)[static_cast<size_t>(place.rank)]));
  WatchOptions options;
  options.processes = std::move(*processes);
  options.rank = place.rank;
  options.size = place.size;
  options.store_rank = place.store_served || !where.file.empty() ? -1 : 0;
  options.store_address = store_text(where);
  options.beat = beat_of(place.size, config);
  options.limits.answer_s = seconds_of(config.answer_timeout);
  options.limits.wait_s = seconds_of(config.wait_timeout);
  GlooOptions gloo;
  gloo.rank = place.rank;
  gloo.size = place.size;
  gloo.local_rank = place.local_rank;
  gloo.address = address_of(options.processes, where);
  // Gloo's own limit is only a last resort: the watch ends calls earlier, and knows the rank.
  gloo.timeout = config.wait_timeout + std::chrono::minutes(1);
  where.serve = false;  // the watch has a connection of its own, which may block
  auto second = connect_store(where, std::min(timeout, kSecondConnection));
  if (!second.ok()) return unreachable(second.error(), "", place, where, config);
  auto watch = std::make_unique<RankWatch>(std::move(*second), std::move(options));
  return gloo_communicator(std::move(*store), std::move(watch), gloo);
}

}  // namespace

Result<std::unique_ptr<Communicator>> join_ranks(const RankPlace& place, const RanksConfig& config) {
  if (place.size == 1) return one_process_communicator();
  return join_group(place, config);
}

Result<std::unique_ptr<Communicator>> join_ranks(const RanksConfig& config) {
  return join_ranks(TRY(find_rank_place(process_variables())), config);
}

}  // namespace mortise
