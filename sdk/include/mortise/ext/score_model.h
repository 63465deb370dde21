/* Host extension mortise.score_model/1: reward models that the engine loads and runs for a plugin.
 *
 * host->get_extension(MORTISE_EXT_SCORE_MODEL) is a `const mortise_score_model_vtable*`, or null in a process without
 * an engine, such as a worker of rewards: a reward that stands on it declares MORTISE_FLAG_NEEDS_ENGINE, and the host
 * then runs it in the engine's own process. A model is a local Hugging Face folder of a sequence classifier with one
 * label, with its own tokenizer and chat template: open it once in `create`, score rows with it, close it in `destroy`.
 */
#ifndef MORTISE_EXT_SCORE_MODEL_H_
#define MORTISE_EXT_SCORE_MODEL_H_

#include "../host.h"

#define MORTISE_EXT_SCORE_MODEL "mortise.score_model/1"

/* what becomes of a row with more tokens than max_length */
#define MORTISE_TRUNCATE_ERROR 0  /* it fails */
#define MORTISE_TRUNCATE_LEFT 1   /* its last max_length tokens stay */
#define MORTISE_TRUNCATE_RIGHT 2  /* its first max_length tokens stay */
#define MORTISE_TRUNCATE_MIDDLE 3 /* the first and the last half of max_length stay */

typedef struct mortise_score_model_options {
  uint32_t struct_size;
  uint32_t flags;             /* 0 */
  mortise_text folder;        /* with config.json, weights and tokenizer; relative to the working directory */
  mortise_text chat_template; /* path of a Jinja file in place of the folder's own template; empty = the folder's */
  int64_t max_length;         /* tokens of prompt and completion together; 0 = the model's max_position_embeddings */
  int64_t batch_size;         /* rows computed at a time, 0 = 8; it changes memory and time, never a score */
  int32_t truncation;         /* MORTISE_TRUNCATE_* */
  int32_t plain_text;         /* 1 = rows with messages too are scored as prompt + completion, without a template */
} mortise_score_model_options;

typedef struct mortise_score_model_in {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  int64_t num_rows;
  /* Each [num_rows]. A row with messages (a JSON list of {role, content}, as in mortise_reward_in) is the chat with the
   * completion as the assistant's answer, rendered by the model's template without a generation prompt; one without is
   * the prompt's text with the completion's behind it. Neither gets special tokens besides those written there. */
  const mortise_text* prompts;
  const mortise_text* completions;
  const mortise_text* messages; /* optional: null or empty texts = plain prompts */
  const mortise_text* tools;    /* optional: JSON lists of the tools that the chats' templates are shown; or empty */
} mortise_score_model_in;

typedef struct mortise_score_model_out {
  uint32_t struct_size;
  uint32_t flags;
  double* scores;      /* [num_rows] the classifier's logit; NaN for a row that failed */
  int64_t* num_tokens; /* [num_rows] or null: tokens of the row, before any were cut away */
  /* Why a row has no score. `sink` is this struct's. */
  void (*row_failed)(void* sink, int64_t row, int32_t code, mortise_text text) MORTISE_NOEXCEPT;
  void* sink;
} mortise_score_model_out;

typedef struct mortise_score_model_vtable {
  uint32_t struct_size;
  uint32_t flags;
  /* Loads a model into *model, the caller's until close. Fails through host->fail, with the folder, what is wrong with
   * it and the next step in the text: NOT_FOUND where the folder, its tokenizer or the template is not there,
   * INVALID_ARGUMENT where it holds a model or template of another kind, DATA_LOSS where a file cannot be read.
   * [control] */
  int32_t (*open)(const mortise_host* host, mortise_call* call, const mortise_score_model_options* options,
                  void** model) MORTISE_NOEXCEPT;
  void (*close)(void* model) MORTISE_NOEXCEPT; /* [control] */
  /* Scores rows, each alone: its score does not depend on the others. The score is the logit at the last token that is
   * not the tokenizer's padding token (its end token where it has none), as transformers takes it. A row that cannot be
   * scored is told to row_failed; a status is for the call as a whole (CANCELLED once it is over). [compute] */
  int32_t (*score)(void* model, mortise_call* call, const mortise_score_model_in* in,
                   mortise_score_model_out* out) MORTISE_NOEXCEPT;
} mortise_score_model_vtable;

#endif /* MORTISE_EXT_SCORE_MODEL_H_ */
