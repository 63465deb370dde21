// Which rank is to blame, from what one rank knows about the others. A pure function, so that tests can stage all
// cases.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "dist/watch/rank_state.h"

namespace mortise {

struct WatchLimits {
  double answer_s = 30;  // a rank whose messages stay away for this long hangs
  double wait_s = 1800;  // a rank that answers, but lets the others wait for this long, hangs too
  double dead_s = 5;     // as answer_s, once a collective has failed: somebody's connection has closed
  double notice_s = 45;  // the logs say who is late, and what that rank does; after it twice as long, and so on
};

// What this rank knows about one rank.
struct RankView {
  RankState state;
  double silent_s = 0;      // since its last message
  double waits_s = 0;       // in one call, by its messages; 0: it is in none
  bool has_ended = false;   // this machine runs its process no more
  bool is_final = false;    // the store has answered since that was seen: `state` is the last one that the rank wrote
  std::string description;  // "rank 2 (process 77 on node1)"
};

struct Situation {
  int rank = 0;  // this one
  std::span<const RankView> ranks;
  int64_t calls = 0;  // calls by this rank
  bool waits = false;
  double waited_s = 0;     // in the current call
  std::string waits_in{};  // its stage
  RankSet awaits = {};     // the ranks of this call
  bool call_failed = false;
  int store_rank = 0;         // the rank that serves the store; -1: another program, or a file
  std::string store_address;  // for people
  bool store_lost = false;    // its connection has closed
  double store_silent_s = 0;  // since its last answer
};

// The first verdict counts for all ranks, so that all name the same rank.
struct Verdict {
  int rank = -1;  // -1: none
  std::string cause;
  bool operator==(const Verdict&) const = default;
};
std::string encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::string_view text);

// Nothing while all is well, or while the cause does not show yet.
std::optional<Verdict> diagnose(const Situation& situation, const WatchLimits& limits);

// The ranks that let this one wait, as "rank 2 (process 77 on node1) is still in 'rollout' of step 12". Empty if none
// does.
std::string late_ranks_text(const Situation& situation);
// The other ranks of this rank's call, if all of them have been in it for so long: nobody is late, and still it does
// not end. "rank 2 (process 77 on node1), ...". Empty: some are not, or not yet.
std::string all_wait_text(const Situation& situation, double seconds);
// This rank waits in a call of some ranks, and every rank that its call leads to has waited for so long, in different
// calls: no one of them can end. "rank 2 (process 77 on node1) in 'tensor parallel' for the ranks 2 and 3, ...". Empty:
// this is not so, or some of them compute.
std::string circle_text(const Situation& situation, double seconds);
// Ranks wait for this one, which is not in a collective.
bool is_awaited(const Situation& situation);

}  // namespace mortise
