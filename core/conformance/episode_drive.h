// Calls the slots of an environment with inputs in guarded memory, and checks each observation as the engine does.
//
// Memory of inputs is unmapped when the slot returns. Threading: one thread per instance.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/subject.h"
#include "plugin/host/kinds/environment.h"

namespace mortise::check {

// How one call of reset or step ended.
struct EpisodeCall {
  SlotCall call;
  std::vector<EpisodeAnswer> answers;  // one for each episode of the call; failure is set for those of fail_row
  std::vector<int64_t> num_given;      // observations of each episode
  std::string fault;                   // an observation of another episode
};

// `tail_bytes`: bytes that a newer host adds to structs.
[[nodiscard]] EpisodeCall call_reset(const Instance& instance, std::span<const EpisodeStart> starts,
                                     size_t tail_bytes = 0);
[[nodiscard]] EpisodeCall call_step(const Instance& instance, std::span<const EpisodeAction> actions,
                                    size_t tail_bytes = 0);
[[nodiscard]] SlotCall call_close(const Instance& instance, std::span<const int64_t> episodes);
// The text that describe hands over, or "" if there is no such slot.
[[nodiscard]] Result<std::string> call_describe(const Instance& instance, size_t tail_bytes = 0);

// Broken if the call failed as a whole, if an episode lacks its answer or has two, or if its numbers mean nothing.
[[nodiscard]] Result<> demand_answers(const EpisodeCall& call, std::string_view slot);

// Six episodes of three prompts. Their numbers are not in order and do not start at 0.
[[nodiscard]] std::vector<EpisodeStart> usual_starts(uint64_t seed = 1);
// What an episode answers to reset, and then to each of at most four turns.
using Played = std::vector<EpisodeAnswer>;
// Plays all episodes to their end and closes them. Turns are the same for the same seed of an episode.
[[nodiscard]] Result<std::vector<Played>> play(const Instance& instance, std::span<const EpisodeStart> starts,
                                               size_t tail_bytes = 0);
// The turn that `play` makes in an episode.
[[nodiscard]] EpisodeAction usual_turn(const EpisodeStart& start, int64_t turn);
// Broken(`what`) unless both played alike. A failure equals a failure, whatever its text.
[[nodiscard]] Result<> demand_same_episode(const Played& one, const Played& other, const std::string& what);

}  // namespace mortise::check
