/* Kind mortise.policy_loss/1: per-token loss of the policy and its gradient.
 *
 * Called once per micro-batch (token and row coupling), for whole groups (group) or per update (update coupling).
 * The plugin does not aggregate. The engine has turned loss_agg_mode, rollout importance weights and masks into
 * `weight`, so the update's policy loss is sum over tokens of weight * loss. The plugin returns, for every token t,
 *     loss[t]           the loss of that token
 *     grad_log_prob[t]  d( sum_s weight[s] * loss[s] ) / d log_prob[t]
 * Tokens with response_mask 0 or weight 0 have no gradient; the host sets their outputs to 0. A token that a mask of the
 * engine takes out of a loss with row coupling has MORTISE_RATIO_ONLY_WEIGHT instead: what it adds to the sum is 0, but
 * the losses of other tokens may depend on its log_prob, and that gradient counts.
 * Life: create, compute for every micro-batch of every update of the run, destroy at its end. A failure stops the run,
 * and so does a loss or gradient that is not finite. A call may have 0 rows or 0 tokens. The descriptor's `coupling`
 * says whether a loss must see whole rows, groups or the update.
 */
#ifndef MORTISE_KINDS_POLICY_LOSS_H_
#define MORTISE_KINDS_POLICY_LOSS_H_

#include "../pack.h"

#define MORTISE_KIND_POLICY_LOSS "mortise.policy_loss/1"

/* The smallest normal float: a sum with any other weight or loss does not notice it, and it is not 0. */
#define MORTISE_RATIO_ONLY_WEIGHT 1.17549435e-38F

typedef struct mortise_policy_loss_in {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const mortise_layout* layout;
  const mortise_tensor* log_prob;     /* [N] f32, of the sampled token under the policy being trained, at temperature */
  const mortise_tensor* old_log_prob; /* [N] f32, under the policy before this batch's first update */
  const mortise_tensor* advantages;   /* [N] f32 */
  const mortise_tensor* response_mask; /* [N] u8 */
  const mortise_tensor* weight;        /* [N] f32, >= 0: share of the aggregated loss, or RATIO_ONLY_WEIGHT */
  /* optional: null unless the engine has them (or the descriptor's requires_inputs names them) */
  const mortise_tensor* ref_log_prob;       /* [N] f32 */
  const mortise_tensor* rollout_log_prob;   /* [N] f32, as the sampler reported it */
  const mortise_tensor* rollout_is_weights; /* [N] f32, given only to losses that consume them */
  const mortise_tensor* entropy;            /* [N] f32, nats, full vocabulary */
  int64_t step;                             /* step of the run, from 1 */
  int64_t update_index;                     /* update of the run, from 1 */
} mortise_policy_loss_in;

typedef struct mortise_policy_loss_out {
  uint32_t struct_size;
  uint32_t flags;
  const mortise_tensor* loss;          /* [N] f32, preallocated, zeroed (not for MORTISE_FLAG_WRITES_ALL) */
  const mortise_tensor* grad_log_prob; /* [N] f32, preallocated, zeroed (as loss); null: value only */
  const mortise_tensor* grad_entropy;  /* [N] f32 or null: d(sum weight*loss)/d entropy, for losses that use it */
} mortise_policy_loss_out;

typedef struct mortise_policy_loss_vtable {
  MORTISE_VTABLE_HEAD
  /* Mandatory. Fills `out` for the tokens of `in`. Called for each micro-batch; calls of one update are in the order of
   * its rows. Keeps no state between calls unless it offers mortise.state/1. Fails with a status and host->fail; the
   * run then stops with the text. [compute] */
  int32_t (*compute)(void* self, mortise_call* call, const mortise_policy_loss_in* in,
                     mortise_policy_loss_out* out) MORTISE_NOEXCEPT;
} mortise_policy_loss_vtable;

#endif /* MORTISE_KINDS_POLICY_LOSS_H_ */
