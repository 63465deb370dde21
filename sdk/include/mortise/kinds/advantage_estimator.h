/* Kind mortise.advantage_estimator/1: advantages (and returns) of a step's whole batch.
 *
 * Called once per step with every row in a fixed order, before the engine cuts mini-batches. Optional inputs are null
 * unless requires_inputs names them; the engine plans them before the first step. State that must survive a resume
 * (running means, fitted distributions) goes through mortise.state/1.
 */
#ifndef MORTISE_KINDS_ADVANTAGE_ESTIMATOR_H_
#define MORTISE_KINDS_ADVANTAGE_ESTIMATOR_H_

#include "../pack.h"

#define MORTISE_KIND_ADVANTAGE_ESTIMATOR "mortise.advantage_estimator/1"

typedef struct mortise_advantage_estimator_in {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const mortise_layout* layout;
  const mortise_tensor* token_level_rewards; /* [N] f32; an outcome reward is at the row's last response token */
  const mortise_tensor* response_mask;       /* [N] u8 */
  const mortise_tensor* rewards;        /* [B,K] f32, one column per reward function, NaN = does not apply; or null */
  const mortise_tensor* reward_weights; /* [K] f32; or null */
  const mortise_tensor* row_valid;      /* [B] u8; 0 = no reward function applied to the row; null = all valid */
  /* optional, by requires_inputs */
  const mortise_tensor* values;             /* [N] f32, of the critic */
  const mortise_tensor* reward_baselines;   /* [B] f32, reward of the greedy completion */
  const mortise_tensor* old_log_prob;       /* [N] f32 */
  const mortise_tensor* sum_pi_squared;     /* [N] f32 */
  const mortise_tensor* rollout_is_weights; /* [N] f32 */
  int64_t step;                             /* step of the run, from 1 */
} mortise_advantage_estimator_in;

typedef struct mortise_advantage_estimator_out {
  uint32_t struct_size;
  uint32_t flags;
  const mortise_tensor* advantages; /* [N] f32, preallocated, zeroed */
  const mortise_tensor* returns;    /* [N] f32, preallocated, zeroed */
} mortise_advantage_estimator_out;

typedef struct mortise_advantage_estimator_vtable {
  MORTISE_VTABLE_HEAD
  /* Mandatory. Fills `out` for all rows of the step; there may be none. A row that is not valid gets 0. A failure stops
   * the run with the text of host->fail. [compute] */
  int32_t (*compute)(void* self, mortise_call* call, const mortise_advantage_estimator_in* in,
                     mortise_advantage_estimator_out* out) MORTISE_NOEXCEPT;
} mortise_advantage_estimator_vtable;

#endif /* MORTISE_KINDS_ADVANTAGE_ESTIMATOR_H_ */
