/* Kind mortise.reward/1: one number per completion.
 *
 * Rows are typed columns: the prompt and completion as text and as token ids, why the completion ended, and every other
 * column of the data row by its name. `rewards` is prefilled with NaN, which means "this function does not apply to
 * this row" and is never read as 0. Pointers are valid until the slot returns.
 */
#ifndef MORTISE_KINDS_REWARD_H_
#define MORTISE_KINDS_REWARD_H_

#include "../pack.h"

#define MORTISE_KIND_REWARD "mortise.reward/1"

/* column types; a plugin treats a column of another type as absent */
#define MORTISE_COLUMN_TEXT 0 /* UTF-8 */
#define MORTISE_COLUMN_I64 1
#define MORTISE_COLUMN_F64 2
#define MORTISE_COLUMN_JSON 3 /* UTF-8 JSON text of the value */

/* why a completion ended; a plugin reads another number as STOP */
#define MORTISE_FINISH_STOP 0   /* an end token, which is its last id, or a stop string */
#define MORTISE_FINISH_LENGTH 1 /* cut at the longest allowed length */
#define MORTISE_FINISH_ABORT 2  /* aborted by the backend; partial */

/* The rows that one slot call gets: the vtable's `granularity`. */
#define MORTISE_REWARD_ROW 0   /* any rows in any order: may be split and run in parallel */
#define MORTISE_REWARD_GROUP 1 /* whole groups */
#define MORTISE_REWARD_BATCH 2 /* the whole step at once */

/* Row i is bytes[offsets[i] .. offsets[i+1]). A frozen leaf. */
typedef struct mortise_text_column {
  const char* bytes;
  const uint64_t* offsets; /* [B+1] */
} mortise_text_column;

/* Row i is ids[offsets[i] .. offsets[i+1]). A frozen leaf. */
typedef struct mortise_id_column {
  const int64_t* ids;
  const uint64_t* offsets; /* [B+1] */
} mortise_id_column;

/* A named column of the data rows. Columns are passed as an array of pointers, so this struct may grow. */
typedef struct mortise_column {
  uint32_t struct_size;
  int32_t type; /* MORTISE_COLUMN_* */
  mortise_text name;
  const uint8_t* valid;     /* [B] 0 = the row has no such value (absent or null) */
  mortise_text_column text; /* TEXT and JSON */
  const int64_t* i64;       /* [B] for I64 */
  const double* f64;        /* [B] for F64 */
} mortise_column;

typedef struct mortise_reward_in {
  uint32_t struct_size;
  uint32_t flags;                 /* 0 */
  int64_t num_rows;               /* B; may be 0 */
  mortise_text_column prompt;     /* as rendered for the model, special tokens included */
  mortise_text_column completion; /* special tokens left out */
  mortise_text_column messages;   /* JSON of the chat, or empty text when the row had a plain prompt */
  mortise_id_column prompt_ids;
  mortise_id_column completion_ids; /* exactly what was sampled, the end token included */
  const int32_t* finish_reason;     /* [B] MORTISE_FINISH_* */
  const int64_t* group_index;       /* [B] rows of one prompt share it */
  const int64_t* sample_index;      /* [B] place of the row in its group, from 0 */
  const int64_t* row_id;            /* [B] place of the row in the step */
  uint64_t num_columns;
  const mortise_column* const* columns; /* [num_columns] further columns of the data */
  int64_t step;                         /* step of the run, from 1; 0 outside a run */
  int64_t max_response_length;          /* tokens; 0 = unknown */
  int32_t is_validation;                /* 1 while validating */
  int32_t padding;
} mortise_reward_in;

typedef struct mortise_reward_out {
  uint32_t struct_size;
  uint32_t flags;
  double* rewards; /* [B], prefilled NaN */
  /* Rewards of single tokens, laid out as completion_ids.ids, prefilled 0; null unless the plugin declares
   * MORTISE_FLAG_TOKEN_REWARDS, and with a host that does not ask for them. The reward of a row is rewards[i] plus the
   * sum of its token rewards. rewards[i] counts at the row's last token, the others at their tokens. They must be
   * finite and belong to rows with a reward. If there is nothing to say about the whole row, set rewards[i] to 0. */
  float* token_rewards;
  /* A named number of a row, for the completion files and the metric `reward_extra/NAME`; or null. The first argument
   * is this struct's `sink`, and the name is copied. [any], until the slot returns. */
  void (*row_value)(void* sink, int64_t row, mortise_text name, double value) MORTISE_NOEXCEPT;
  void* sink;
} mortise_reward_out;

typedef struct mortise_reward_vtable {
  MORTISE_VTABLE_HEAD
  int32_t granularity; /* MORTISE_REWARD_* */
  int32_t padding;
  /* Mandatory. Sets rewards[i] for the rows to which the function applies; the others keep NaN. Called for the rows
   * of a step in pieces of any size (one row or group, or none: num_rows 0), in any order, in any number of processes
   * with one instance each. For one bad row call host->fail_row(call, i, ...) and continue. A status fails every row of
   * the call. The host may kill it after its deadline. [compute] */
  int32_t (*score)(void* self, mortise_call* call, const mortise_reward_in* in,
                   mortise_reward_out* out) MORTISE_NOEXCEPT;
} mortise_reward_vtable;

#endif /* MORTISE_KINDS_REWARD_H_ */
