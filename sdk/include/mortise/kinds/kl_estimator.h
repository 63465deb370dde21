/* Kind mortise.kl_estimator/1: per-token estimate of KL(policy || reference) from the log-probs of the sampled token.
 *
 * With gradient when it is a loss term (actor.use_kl_loss), without when it is subtracted from the reward
 * (algorithm.use_kl_in_reward). Aggregation is the engine's, by `weight`. The straight-through forms "NAME+" (value of
 * NAME, gradient of k2) are composed by the engine for every estimator. See J. Schulman, "Approximating KL divergence".
 */
#ifndef MORTISE_KINDS_KL_ESTIMATOR_H_
#define MORTISE_KINDS_KL_ESTIMATOR_H_

#include "../pack.h"

typedef struct mortise_kl_estimator_in {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const mortise_layout* layout;
  const mortise_tensor* log_prob;      /* [N] f32 */
  const mortise_tensor* ref_log_prob;  /* [N] f32 */
  const mortise_tensor* response_mask; /* [N] u8 */
  const mortise_tensor* weight;        /* [N] f32 */
  const mortise_tensor* old_log_prob;  /* [N] f32 or null; for estimators corrected by the importance ratio */
} mortise_kl_estimator_in;

typedef struct mortise_kl_estimator_out {
  uint32_t struct_size;
  uint32_t flags;
  const mortise_tensor* kl;            /* [N] f32, nats; preallocated, zeroed (not for MORTISE_FLAG_WRITES_ALL) */
  const mortise_tensor* grad_log_prob; /* [N] f32 = d(sum weight*kl)/d log_prob; null: value only */
} mortise_kl_estimator_out;

typedef struct mortise_kl_estimator_vtable {
  MORTISE_VTABLE_HEAD
  /* Mandatory. Fills `out` for the tokens of `in`; a call may have none. As a loss term it is called for each
   * micro-batch, in the reward once per step. Failing stops the run with the text of host->fail. [compute] */
  int32_t (*compute)(void* self, mortise_call* call, const mortise_kl_estimator_in* in,
                     mortise_kl_estimator_out* out) MORTISE_NOEXCEPT;
} mortise_kl_estimator_vtable;

#endif /* MORTISE_KINDS_KL_ESTIMATOR_H_ */
