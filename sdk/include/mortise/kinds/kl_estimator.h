/* Kind mortise.kl_estimator/1: per-token estimate of KL(policy || reference) from the log-probs of the sampled token.
 *
 * The engine asks for the gradient if the estimate is a loss term (actor.use_kl_loss), but not if it subtracts the
 * estimate from the reward (algorithm.use_kl_in_reward). The engine aggregates, by `weight`. It also makes the
 * straight-through forms "NAME+" (value of NAME, gradient of k2) of every estimator. See J. Schulman, "Approximating KL
 * divergence".
 */
#ifndef MORTISE_KINDS_KL_ESTIMATOR_H_
#define MORTISE_KINDS_KL_ESTIMATOR_H_

#include "../pack.h"

#define MORTISE_KIND_KL_ESTIMATOR "mortise.kl_estimator/1"

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
  /* Mandatory. Fills `out` for the tokens of `in`; a call may have none. The engine calls it for each micro-batch as a
   * loss term, and once per step in the reward. A failure stops the run with the text of host->fail. [compute] */
  int32_t (*compute)(void* self, mortise_call* call, const mortise_kl_estimator_in* in,
                     mortise_kl_estimator_out* out) MORTISE_NOEXCEPT;
} mortise_kl_estimator_vtable;

#endif /* MORTISE_KINDS_KL_ESTIMATOR_H_ */
