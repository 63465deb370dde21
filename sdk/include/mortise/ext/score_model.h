/* Host extension mortise.score_model/1: reward models that the engine loads and runs for a plugin.
 *
 * host->get_extension(MORTISE_EXT_SCORE_MODEL) is a `const mortise_score_model_vtable*`, or null in a process without
 * an engine, such as a worker of rewards. A reward that needs it declares MORTISE_FLAG_NEEDS_ENGINE. The host then runs
 * the reward in the engine's own process, and the table is there from its `create` on. A model is a local Hugging Face
 * folder of a sequence classifier with one label, with its own tokenizer and chat template: open it once in `create`,
 * score rows with it, close it in `destroy`.
 */
#ifndef MORTISE_EXT_SCORE_MODEL_H_
#define MORTISE_EXT_SCORE_MODEL_H_

#include "../host.h"

#define MORTISE_EXT_SCORE_MODEL "mortise.score_model/1"

/* what to do with a row of more than max_length tokens */
#define MORTISE_TRUNCATE_ERROR 0  /* it fails */
#define MORTISE_TRUNCATE_LEFT 1   /* keep its last max_length tokens */
#define MORTISE_TRUNCATE_RIGHT 2  /* keep its first max_length tokens */
#define MORTISE_TRUNCATE_MIDDLE 3 /* keep the first and the last half of max_length */

typedef struct mortise_score_model_options {
  uint32_t struct_size;
  uint32_t flags;             /* 0 */
  mortise_text folder;        /* with config.json, weights and tokenizer; relative to the working directory */
  mortise_text chat_template; /* path of a Jinja file that replaces the folder's template; empty = the folder's */
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
   * completion as the assistant's answer, rendered by the model's template without a generation prompt. A row without
   * messages is the prompt's text followed by the completion's. No special tokens are added to either. */
  const mortise_text* prompts;
  const mortise_text* completions;
  const mortise_text* messages; /* optional: null or empty texts = plain prompts */
  const mortise_text* tools;    /* optional: JSON lists of the tools that the chats' templates are shown; or empty */
} mortise_score_model_in;

typedef struct mortise_score_model_out {
  uint32_t struct_size;
  uint32_t flags;
  double* scores;      /* [num_rows] the classifier's logit; NaN for a row that failed */
  int64_t* num_tokens; /* [num_rows] or null: tokens of the row, before truncation */
  /* The plugin's function: takes the reason why a row has no score. `sink` is this struct's. Called from the thread
   * that runs `score`, until it returns; `text` is borrowed until row_failed returns. */
  void (*row_failed)(void* sink, int64_t row, int32_t code, mortise_text text) MORTISE_NOEXCEPT;
  void* sink;
} mortise_score_model_out;

typedef struct mortise_score_model_vtable {
  uint32_t struct_size;
  uint32_t flags;
  /* Loads a model into *model, which belongs to the caller until close. Fails through host->fail with a text that names
   * the folder, the fault and the next step: NOT_FOUND if the folder, its tokenizer or the template is missing,
   * INVALID_ARGUMENT if it has a model or template of another kind, DATA_LOSS if a file cannot be read. [control] */
  int32_t (*open)(const mortise_host* host, mortise_call* call, const mortise_score_model_options* options,
                  void** model) MORTISE_NOEXCEPT;
  void (*close)(void* model) MORTISE_NOEXCEPT; /* [control] */
  /* Scores rows independently of each other. The score is the logit at the last token that is not the tokenizer's
   * padding token (its end token if it has no padding token), as in transformers. row_failed gets each row that cannot
   * be scored. A status is for the whole call (CANCELLED once it is over). [compute] */
  int32_t (*score)(void* model, mortise_call* call, const mortise_score_model_in* in,
                   mortise_score_model_out* out) MORTISE_NOEXCEPT;
} mortise_score_model_vtable;

#endif /* MORTISE_EXT_SCORE_MODEL_H_ */
