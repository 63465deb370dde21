// A round of sampling ahead: what is sampled while a step learns (trainer.mode = "one_step_off" and "async").
//
// With N = steps_ahead, the round of step j works on the rollouts of steps j + 1 to j + N. Rows of the first are sampled
// to their end. Those of the others get a share of the longest completion, 1/N of its tokens, and continue in the next
// round with newer weights. So the oldest token that step k learns from is N steps old, and a long row costs a round no
// more than its share. With N = 1 a round samples one whole rollout. Thread rule: one thread.
#pragma once

#include <cstdint>

#include "train/loop/parts.h"
#include "train/sampling/sampler.h"

namespace mortise {

struct AheadRound {
  int64_t number = 0;     // the step that learns meanwhile; 0: none does
  int64_t last_step = 0;  // last step whose rollout gets tokens
  int64_t weight_version = 0;
};

// The tokens of a row in one of `num_rounds` rounds, unless it is the row's last.
inline int64_t share_of(int64_t longest, int64_t num_rounds) { return (longest + num_rounds - 1) / num_rounds; }

// The next piece of a rollout's rows that are not done, to their end. Precondition: there are some, and all of them have
// the same number of tokens.
OpenRows next_piece(AheadRollout& rollout, int64_t longest);

Result<> sample_round(const RunSettings& run, DataParts& data, Sampler& sampler, RewardRunner& reward,
                      const AheadRound& round, RolloutAhead::Rollouts& rollouts);

}  // namespace mortise
