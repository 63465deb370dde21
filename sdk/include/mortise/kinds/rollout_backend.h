/* Kind mortise.rollout_backend/1: completions for prompts.
 *
 * Life: create, set_version(0), then per step submit one or more batches of requests and poll until nothing is
 * outstanding; after each update set_version(version). Backends with their own copies of the weights also implement
 * begin_update / update_weight / end_update. The built-in `native` backend forwards every slot to the engine's own
 * generator, whose table (extension mortise.generate/1) has the same type.
 *
 * A sequence has one version of the weights. Before its weights change, a backend ends the completions that it has
 * begun, or aborts them; the engine itself continues a partial completion with new weights, by a request with a longer
 * prompt.
 */
#ifndef MORTISE_KINDS_ROLLOUT_BACKEND_H_
#define MORTISE_KINDS_ROLLOUT_BACKEND_H_

#include "../pack.h"

#define MORTISE_KIND_ROLLOUT_BACKEND "mortise.rollout_backend/1"
#include "reward.h" /* MORTISE_FINISH_* */

/* How to sample, in this order: penalties, forbidden tokens, temperature, top_k, top_p, min_p, typical_p. */
typedef struct mortise_sampling {
  uint32_t struct_size;
  int32_t ignore_eos;     /* 1: the end ids are forbidden, so that max_new_tokens are always produced */
  int64_t max_new_tokens; /* >= 1 */
  int64_t min_new_tokens; /* end ids are forbidden before */
  double temperature;     /* 0 = greedy */
  double top_p;           /* 1 = off */
  double min_p;           /* 0 = off */
  int64_t top_k;          /* <= 0 = off */
  uint64_t num_stop_ids;
  const int64_t* stop_ids; /* [num_stop_ids] a completion ends with the first of these, which it keeps */
  /* 0 or null turns each of the following off. */
  double typical_p;          /* 1 = off too */
  double repetition_penalty; /* 1 = off too; over prompt and completion: logits > 0 are divided, others multiplied */
  double presence_penalty;   /* subtracted from the logit of each token that the completion has */
  double frequency_penalty;  /* the same, times the token's count */
  uint64_t num_stop_strings;
  const mortise_text* stop_strings; /* [num_stop_strings] ends with the token that completes one in the text */
  uint64_t num_bad_words;
  const int64_t* bad_word_lengths; /* [num_bad_words] ids of each, >= 1 */
  const int64_t* bad_word_ids;     /* all of them, one after the other: runs of ids that are forbidden */
} mortise_sampling;

typedef struct mortise_rollout_request {
  uint32_t struct_size;
  uint32_t flags;
  int64_t request_id;        /* chosen by the host; return it with every sequence */
  const int64_t* prompt_ids; /* [num_prompt_ids] */
  int64_t num_prompt_ids;
  int64_t num_samples;  /* n completions of this prompt */
  int64_t first_row_id; /* sample j is row first_row_id + j of the step; part of the random key */
  uint64_t seed;        /* run seed; randomness is a function of (seed, step, row, token position) alone */
  int64_t step;
  const mortise_sampling* sampling;
} mortise_rollout_request;

/* One finished (or aborted) completion. Borrowed: the sink copies. */
typedef struct mortise_rollout_sequence {
  uint32_t struct_size;
  int32_t finish_reason; /* MORTISE_FINISH_* */
  int64_t request_id;
  int64_t sample_index;   /* 0 .. num_samples-1 */
  int64_t weight_version; /* version of the weights that made it */
  int64_t num_ids;
  const int64_t* ids;             /* [num_ids], the end token included */
  const float* log_prob;          /* [num_ids] at temperature, unfiltered; null when the backend has none */
  const float* filtered_log_prob; /* [num_ids] after penalties, forbidden tokens and filters; or null */
  /* Experts that each token of prompt and completion took, layer by layer in a mixture of experts; 65535 as
   * the first of a layer's: not known. The last token may be unknown. Null: not given. A host need not use them. */
  const uint16_t* experts;
  uint64_t num_experts; /* numbers in `experts`: tokens x layers with experts x experts per token */
} mortise_rollout_sequence;

typedef struct mortise_rollout_sink {
  uint32_t struct_size;
  uint32_t flags;
  void* context;
  /* Takes one sequence, whatever it returns. Non-zero means back-pressure: keep the others for the next poll. Call it
   * from the thread that runs the slot, until the slot returns. */
  int32_t (*sequence)(void* context, const mortise_rollout_sequence* sequence) MORTISE_NOEXCEPT;
} mortise_rollout_sink;

typedef struct mortise_rollout_backend_vtable {
  MORTISE_VTABLE_HEAD
  /* The engine's weights now carry this version. Mandatory. [control] */
  int32_t (*set_version)(void* self, mortise_call* call, int64_t version) MORTISE_NOEXCEPT;
  /* Optional, all three or none: new weights for backends with their own copies. Between begin and end the host calls
   * update_weight for every weight of the model, a tied one once, in any order. Names are those of the model's folder.
   * When the user wants only a LoRA adapter sent, the A and B of the adapter come instead, under PEFT's names
   * (.lora_A., .lora_B.), and the weights are those of the base plus B A. A weight may come in several shards:
   * `global_shape` and `offset` have shard->ndim numbers each and give the shard's place. A shard is float32 in host
   * memory, whatever the model computes in: a host sends another type or device only to a backend that asks for it with
   * an extension. All pointers are borrowed until the slot returns. A failure stops the run. [control] */
  int32_t (*begin_update)(void* self, mortise_call* call, int64_t version) MORTISE_NOEXCEPT;
  int32_t (*update_weight)(void* self, mortise_call* call, mortise_text name, const mortise_tensor* shard,
                           const int64_t* global_shape, const int64_t* offset) MORTISE_NOEXCEPT;
  int32_t (*end_update)(void* self, mortise_call* call) MORTISE_NOEXCEPT;
  /* Queues requests. `accepted` <= num_requests is how many it took; the host offers the rest again after a poll. The
   * backend copies requests and what they point to. Mandatory. [compute] */
  int32_t (*submit)(void* self, mortise_call* call, const mortise_rollout_request* const* requests,
                    uint64_t num_requests, uint64_t* accepted) MORTISE_NOEXCEPT;
  /* Works or waits up to timeout_ns (0 = deliver what is ready), gives finished sequences to the sink, and sets in
   * `outstanding` how many samples of accepted requests it has not given to the sink yet: 0 once all were given.
   * MORTISE_DATA_LOSS: the weights give numbers that are not finite; the run ends as a diverged one. Mandatory.
   * [compute] */
  int32_t (*poll)(void* self, mortise_call* call, const mortise_rollout_sink* sink, int64_t timeout_ns,
                  uint64_t* outstanding) MORTISE_NOEXCEPT;
  /* Aborts request_id (-1 = all). The next poll delivers partial sequences with FINISH_ABORT. Optional. [compute] */
  int32_t (*abort)(void* self, mortise_call* call, int64_t request_id) MORTISE_NOEXCEPT;
  /* With rollout.sleep_while_training, around the updates of each step: sleep frees what training does not need (level
   * 1: caches; 2: also the weights, which the host then sends again), and wake takes it back. Optional. [control] */
  int32_t (*sleep)(void* self, mortise_call* call, int32_t level) MORTISE_NOEXCEPT;
  int32_t (*wake)(void* self, mortise_call* call) MORTISE_NOEXCEPT;
} mortise_rollout_backend_vtable;

#endif /* MORTISE_KINDS_ROLLOUT_BACKEND_H_ */
