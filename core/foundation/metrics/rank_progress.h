// How far the ranks of a run are in the stages of their step. The live view of each rank notes its own stages here, the
// watch of the ranks (dist/watch) carries them to the main rank with its beats, and the main rank's view shows for each
// stage the rank that has least of it done.
// Thread rule: any thread. Only live_refresh() waits for a terminal or a disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

// A step of this process begins: nothing is noted of it, and nothing is known of other ranks.
void note_step();
// `stage` is a name in the code, without \n, "," and "=".
void note_stage(std::string_view stage, int64_t done, int64_t total);
// The stages of this step that are not done: "sampling=12/64,rewards=8/64".
[[nodiscard]] std::string own_progress();

// own_progress() of all ranks, by rank; empty if a rank is in another step. Of the main rank, whose own counts.
void note_ranks(std::vector<std::string> progress);
struct SlowRank {
  int rank = 0;
  int64_t done = 0, total = 0;
};
// The rank with the smallest part of a stage done: the main rank, which has `done` of `total`, or one that is not done with
// it. Nothing if no ranks are known.
[[nodiscard]] std::optional<SlowRank> slowest_rank(std::string_view stage, int64_t done, int64_t total);

// Shows the live view again, if this process has one (live.cpp). A rank that waits for others tells nothing itself. May wait
// for the terminal.
void live_refresh();

}  // namespace mortise
