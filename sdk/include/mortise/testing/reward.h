/* Calls of a reward in an author's test: rows as plain C texts. See host.h. */
#ifndef MORTISE_TESTING_REWARD_H_
#define MORTISE_TESTING_REWARD_H_

#include "host.h"

#define MORTISE_TEST_MAX_COLUMNS 8

/* One completion. `columns` are name, value, name, value ... of the data row; null: the row has no such value. A value
 * is a text, unless its name begins with '#': then it is a number, whole or not, as a data file has it
 * ({"#level", "3", "#share", "0.5"}); or with '$': then it is JSON ({"$tags", "[1, 2]"}). A column of numbers that are
 * not all whole is one of floats. */
typedef struct mortise_test_row {
  const char* prompt;
  const char* completion;
  const char* columns[2 * MORTISE_TEST_MAX_COLUMNS];
} mortise_test_row;

/* The other fields of a call, and the place of the token rewards. Fill it with zeros first: 0 and null mean the
 * default. Arrays have one element per row. */
typedef struct mortise_test_batch {
  const char* const* messages;  /* JSON of the chat; default: none, as for a plain prompt */
  const int32_t* finish_reason; /* default: MORTISE_FINISH_STOP */
  const int64_t* group_index;   /* default: all rows are completions of one prompt */
  const int64_t* sample_index;  /* place of the row in its group; default: its place in the call */
  int64_t num_prompt_ids;       /* each row has the prompt ids 0, 1 ... num_prompt_ids - 1 */
  int64_t num_completion_ids;   /* and likewise its completion ids */
  int64_t step;
  int64_t max_response_length;
  int32_t is_validation;
  float* token_rewards; /* gets num_completion_ids numbers per row, 0 where the plugin gives none */
} mortise_test_batch;

static inline void* mortise_test_memory(uint64_t size) {
  void* memory = calloc(1, (size_t)(size + 1));
  if (memory == NULL) mortise_test_die("no memory", "");
  return memory;
}

/* n texts as one column; null is empty. The caller frees it. */
static inline mortise_text_column mortise_test_join(const char* const* texts, int64_t n) {
  uint64_t size = 0;
  for (int64_t i = 0; i < n; ++i) size += texts[i] == NULL ? 0 : strlen(texts[i]);
  char* bytes = (char*)mortise_test_memory(size);
  uint64_t* offsets = (uint64_t*)mortise_test_memory((uint64_t)(n + 1) * sizeof(uint64_t));
  for (int64_t i = 0; i < n; ++i) {
    const size_t length = texts[i] == NULL ? 0 : strlen(texts[i]);
    if (length > 0) memcpy(bytes + offsets[i], texts[i], length);
    offsets[i + 1] = offsets[i] + length;
  }
  mortise_text_column column = {bytes, offsets};
  return column;
}
static inline void mortise_test_free_column(mortise_text_column column) {
  free((void*)(uintptr_t)column.bytes);
  free((void*)(uintptr_t)column.offsets);
}

/* The data columns of the rows: every name that some row has. */
typedef struct mortise_test_table {
  uint64_t num_columns;
  mortise_column columns[MORTISE_TEST_MAX_COLUMNS];
  const mortise_column* pointers[MORTISE_TEST_MAX_COLUMNS];
} mortise_test_table;

static inline const char* mortise_test_cell(const mortise_test_row* row, const char* name) {
  for (int k = 0; k < 2 * MORTISE_TEST_MAX_COLUMNS && row->columns[k] != NULL; k += 2) {
    if (strcmp(row->columns[k], name) == 0) return row->columns[k + 1];
  }
  return NULL;
}

/* The column's name without the mark of its type. */
static inline const char* mortise_test_column_name(const char* marked) {
  return marked + (marked[0] == '#' || marked[0] == '$');
}

/* Reads the texts as numbers: whole ones if all are, else floats. */
static inline void mortise_test_read_numbers(mortise_column* column, const char* const* texts, int64_t n) {
  int64_t* whole = (int64_t*)mortise_test_memory((uint64_t)n * sizeof(int64_t));
  double* numbers = (double*)mortise_test_memory((uint64_t)n * sizeof(double));
  column->type = MORTISE_COLUMN_I64;
  for (int64_t i = 0; i < n; ++i) {
    char* end;
    if (texts[i] == NULL) continue;
    numbers[i] = strtod(texts[i], &end);
    if (end == texts[i] || *end != 0) mortise_test_die("the value of a '#' column is not a number", texts[i]);
    whole[i] = strtoll(texts[i], &end, 10);
    if (*end != 0) column->type = MORTISE_COLUMN_F64;
  }
  column->i64 = whole;
  column->f64 = numbers;
}

static inline void mortise_test_add_column(mortise_test_table* table, const char* marked, const mortise_test_row* rows,
                                           int64_t n) {
  if (table->num_columns == MORTISE_TEST_MAX_COLUMNS) mortise_test_die("too many columns", marked);
  mortise_column* column = &table->columns[table->num_columns];
  memset(column, 0, sizeof *column);
  column->struct_size = sizeof *column;
  column->type = marked[0] == '$' ? MORTISE_COLUMN_JSON : MORTISE_COLUMN_TEXT;
  column->name.data = mortise_test_column_name(marked);
  column->name.size = strlen(column->name.data);
  uint8_t* valid = (uint8_t*)mortise_test_memory((uint64_t)n);
  const char** texts = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  for (int64_t i = 0; i < n; ++i) {
    texts[i] = mortise_test_cell(&rows[i], marked);
    valid[i] = texts[i] != NULL;
  }
  column->valid = valid;
  if (marked[0] == '#') mortise_test_read_numbers(column, texts, n);
  column->text = mortise_test_join(texts, n);
  free((void*)texts);
  table->pointers[table->num_columns++] = column;
}

static inline mortise_test_table mortise_test_columns(const mortise_test_row* rows, int64_t n) {
  mortise_test_table table;
  memset(&table, 0, sizeof table);
  for (int64_t i = 0; i < n; ++i) {
    for (int k = 0; k < 2 * MORTISE_TEST_MAX_COLUMNS && rows[i].columns[k] != NULL; k += 2) {
      uint64_t known = 0;
      const char* name = rows[i].columns[k];
      while (known < table.num_columns && strcmp(table.columns[known].name.data, mortise_test_column_name(name)) != 0) {
        ++known;
      }
      if (known == table.num_columns) mortise_test_add_column(&table, name, rows, n);
    }
  }
  return table;
}
static inline void mortise_test_free_columns(mortise_test_table* table) {
  for (uint64_t k = 0; k < table->num_columns; ++k) {
    mortise_test_free_column(table->columns[k].text);
    free((void*)(uintptr_t)table->columns[k].valid);
    free((void*)(uintptr_t)table->columns[k].i64);
    free((void*)(uintptr_t)table->columns[k].f64);
  }
}

static inline void mortise_test_row_value(void* sink, int64_t row, mortise_text name, double value) MORTISE_NOEXCEPT {
  (void)sink;
  (void)row;
  (void)name;
  (void)value;
}

/* The ids 0, 1 ... num_ids - 1 for each of n rows. The caller frees it. */
static inline mortise_id_column mortise_test_make_ids(int64_t n, int64_t num_ids) {
  int64_t* ids = (int64_t*)mortise_test_memory((uint64_t)(n * num_ids) * sizeof(int64_t));
  uint64_t* offsets = (uint64_t*)mortise_test_memory((uint64_t)(n + 1) * sizeof(uint64_t));
  for (int64_t t = 0; t < n * num_ids; ++t) ids[t] = t % num_ids;
  for (int64_t i = 0; i <= n; ++i) offsets[i] = (uint64_t)(i * num_ids);
  mortise_id_column column = {ids, offsets};
  return column;
}
static inline void mortise_test_free_ids(mortise_id_column column) {
  free((void*)(uintptr_t)column.ids);
  free((void*)(uintptr_t)column.offsets);
}

/* Scores the rows: rewards[i] belongs to rows[i], NaN if the reward does not apply or failed. */
static inline int32_t mortise_test_score_batch(mortise_test_plugin* plugin, const mortise_test_row* rows, int64_t n,
                                               const mortise_test_batch* batch, double* rewards) {
  const mortise_reward_vtable* vtable = (const mortise_reward_vtable*)plugin->vtable;
  const char** prompts = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  const char** completions = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  const char** no_texts = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  int64_t* zeros = (int64_t*)mortise_test_memory((uint64_t)n * sizeof(int64_t));
  int64_t* places = (int64_t*)mortise_test_memory((uint64_t)n * sizeof(int64_t));
  int32_t* stopped = (int32_t*)mortise_test_memory((uint64_t)n * sizeof(int32_t)); /* MORTISE_FINISH_STOP */
  for (int64_t i = 0; i < n; ++i) {
    prompts[i] = rows[i].prompt;
    completions[i] = rows[i].completion;
    places[i] = i;
    rewards[i] = (double)NAN;
  }
  mortise_test_table table = mortise_test_columns(rows, n);
  for (uint64_t k = 0; k < table.num_columns; ++k) table.pointers[k] = &table.columns[k];
  mortise_reward_in in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.num_rows = n;
  in.prompt = mortise_test_join(prompts, n);
  in.completion = mortise_test_join(completions, n);
  in.messages = mortise_test_join(batch->messages != NULL ? batch->messages : no_texts, n);
  in.prompt_ids = mortise_test_make_ids(n, batch->num_prompt_ids);
  in.completion_ids = mortise_test_make_ids(n, batch->num_completion_ids);
  in.finish_reason = batch->finish_reason != NULL ? batch->finish_reason : stopped;
  in.group_index = batch->group_index != NULL ? batch->group_index : zeros;
  in.sample_index = batch->sample_index != NULL ? batch->sample_index : places;
  in.row_id = places;
  in.num_columns = table.num_columns;
  in.columns = table.pointers;
  in.step = batch->step;
  in.max_response_length = batch->max_response_length;
  in.is_validation = batch->is_validation;
  mortise_reward_out out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.rewards = rewards;
  out.row_value = mortise_test_row_value;
  if (batch->token_rewards != NULL) {
    memset(batch->token_rewards, 0, (size_t)(n * batch->num_completion_ids) * sizeof(float));
  }
  if ((plugin->descriptor->flags & MORTISE_FLAG_TOKEN_REWARDS) != 0) out.token_rewards = batch->token_rewards;
  const int32_t status = vtable->score(mortise_test_self(plugin), plugin->call, &in, &out);
  mortise_test_end_call(plugin);
  mortise_test_free_columns(&table);
  mortise_test_free_column(in.prompt);
  mortise_test_free_column(in.completion);
  mortise_test_free_column(in.messages);
  mortise_test_free_ids(in.prompt_ids);
  mortise_test_free_ids(in.completion_ids);
  free((void*)prompts);
  free((void*)completions);
  free((void*)no_texts);
  free(zeros);
  free(places);
  free(stopped);
  return status;
}

/* The same at step 1 with completion ids 0, 1 ... num_ids - 1 and, if not null, the rewards of those tokens. */
static inline int32_t mortise_test_score_tokens(mortise_test_plugin* plugin, const mortise_test_row* rows, int64_t n,
                                                int64_t num_ids, double* rewards, float* token_rewards) {
  mortise_test_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.num_completion_ids = num_ids;
  batch.token_rewards = token_rewards;
  batch.step = 1;
  return mortise_test_score_batch(plugin, rows, n, &batch, rewards);
}

/* The same without token ids. */
static inline int32_t mortise_test_score(mortise_test_plugin* plugin, const mortise_test_row* rows, int64_t n,
                                         double* rewards) {
  return mortise_test_score_tokens(plugin, rows, n, 0, rewards, NULL);
}

#endif /* MORTISE_TESTING_REWARD_H_ */
