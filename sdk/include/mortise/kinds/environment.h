/* Kind mortise.environment/1: what a row meets between its turns.
 *
 * A row is an episode. Life of an episode: reset, then step after each assistant turn until a step says done or the
 * host ends it, then close. The host tokenizes observations, masks them out of the loss, and keeps all limits.
 * Episodes do not outlive a step of the run. Pointers are valid until the slot returns.
 *
 * ABI 0.2 had this kind as the draft mortise.environment/0. A host takes packs of it as packs of this kind.
 */
#ifndef MORTISE_KINDS_ENVIRONMENT_H_
#define MORTISE_KINDS_ENVIRONMENT_H_

#include "../pack.h"

#define MORTISE_KIND_ENVIRONMENT "mortise.environment/1"
#include "reward.h" /* MORTISE_FINISH_* */

typedef struct mortise_episode_start {
  uint32_t struct_size;
  int32_t is_validation; /* 1 while validating */
  int64_t episode;       /* chosen by the host; no other open episode has it */
  int64_t step;          /* step of the run */
  uint64_t seed;         /* a function of (run seed, step, prompt): the same for all rows of a prompt */
  int64_t sample_index;  /* place of the row among the rows of its prompt, from 0 */
  mortise_text messages; /* JSON list of the prompt's messages */
  mortise_text columns;  /* JSON object of the data row's columns */
} mortise_episode_start;

/* One assistant turn. */
typedef struct mortise_episode_action {
  uint32_t struct_size;
  int32_t finish_reason; /* MORTISE_FINISH_*; LENGTH: the turn was cut, and is_last is 1 */
  int64_t episode;
  int64_t turn;    /* from 0 */
  int32_t is_last; /* 1: the host takes no further observation, only the reward */
  int32_t padding;
  mortise_text text; /* special tokens left out */
  /* JSON list of the tool calls that the host found in the text: {"name": ..., "arguments": {...}}, or {"error": ...}
   * for a call that cannot be read. Empty list: none. */
  mortise_text calls;
  int64_t num_ids;
  const int64_t* ids; /* [num_ids] exactly what was sampled in this turn */
} mortise_episode_action;

/* The answer to a reset or a step. */
typedef struct mortise_observation {
  uint32_t struct_size;
  int32_t done; /* 1: the episode ends, and the messages are not shown to the model */
  int64_t episode;
  double reward;            /* reward of the turn; NaN: none. After reset it must be NaN */
  mortise_text messages;    /* JSON list of {"role", "content"} to add to the conversation; empty text: none */
  int64_t num_calls;        /* tool calls that were answered */
  int64_t num_failed_calls; /* how many of them were answered with an error */
} mortise_observation;

typedef struct mortise_observation_sink {
  uint32_t struct_size;
  uint32_t flags;
  void* context;
  /* One observation for each episode of the call that did not fail. Copies it and its texts. Call it from the thread
   * that runs the slot, until it returns. */
  void (*observation)(void* context, const mortise_observation* observation) MORTISE_NOEXCEPT;
  /* In `describe`: a JSON object. "tools": list of the tools that prompts offer, in the form that chat templates take.
   * "rewards": true if observations have rewards. Copied; from the thread that runs the slot. */
  void (*description)(void* context, mortise_text json) MORTISE_NOEXCEPT;
} mortise_observation_sink;

typedef struct mortise_environment_vtable {
  MORTISE_VTABLE_HEAD
  /* 1: an episode lives in the instance that was reset for it, and is lost with it. 0: a step needs nothing but its
   * input, so any instance may take it, and a crash of another episode costs nothing. */
  int32_t keeps_episodes;
  int32_t padding;
  /* Optional: what the engine must know before the first episode. The same for every instance. [control] */
  int32_t (*describe)(void* self, mortise_call* call, const mortise_observation_sink* sink) MORTISE_NOEXCEPT;
  /* Optional: begins episodes. An observation's messages are added to the prompt; most have none. For an episode that
   * cannot begin, call host->fail_row(call, i, ...) with its place in the call and continue. [compute] */
  int32_t (*reset)(void* self, mortise_call* call, const mortise_episode_start* const* episodes, uint64_t num_episodes,
                   const mortise_observation_sink* sink) MORTISE_NOEXCEPT;
  /* Mandatory. The host may kill it after its deadline. Failures as in reset. [compute] */
  int32_t (*step)(void* self, mortise_call* call, const mortise_episode_action* const* actions, uint64_t num_actions,
                  const mortise_observation_sink* sink) MORTISE_NOEXCEPT;
  /* Optional: these episodes are over. [compute] */
  int32_t (*close)(void* self, mortise_call* call, const int64_t* episodes, uint64_t num_episodes) MORTISE_NOEXCEPT;
} mortise_environment_vtable;

#endif /* MORTISE_KINDS_ENVIRONMENT_H_ */
