/* Calls of a reward in an author's test: rows as plain C texts. See host.h. */
#ifndef MORTISE_TESTING_REWARD_H_
#define MORTISE_TESTING_REWARD_H_

#include "host.h"

#define MORTISE_TEST_MAX_COLUMNS 4

/* One completion. `columns` are name, value, name, value ... of the data row; null: the row has no such value. A column
 * whose name begins with '#' is a number: {"#difficulty", "3.5"}. */
typedef struct mortise_test_row {
  const char* prompt;
  const char* completion;
  const char* columns[2 * MORTISE_TEST_MAX_COLUMNS];
} mortise_test_row;

typedef struct mortise_test_texts {
  char* bytes;
  uint64_t* offsets;
} mortise_test_texts;

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

static inline void mortise_test_add_column(mortise_test_table* table, const char* name, const mortise_test_row* rows,
                                           int64_t n) {
  if (table->num_columns == MORTISE_TEST_MAX_COLUMNS) mortise_test_die("too many columns", name);
  mortise_column* column = &table->columns[table->num_columns];
  memset(column, 0, sizeof *column);
  column->struct_size = sizeof *column;
  const int is_number = name[0] == '#';
  column->type = is_number ? MORTISE_COLUMN_F64 : MORTISE_COLUMN_TEXT;
  column->name.data = name + is_number;
  column->name.size = strlen(name + is_number);
  uint8_t* valid = (uint8_t*)mortise_test_memory((uint64_t)n);
  double* numbers = (double*)mortise_test_memory((uint64_t)n * sizeof(double));
  const char** texts = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  for (int64_t i = 0; i < n; ++i) {
    texts[i] = mortise_test_cell(&rows[i], name);
    valid[i] = texts[i] != NULL;
    if (is_number && texts[i] != NULL) numbers[i] = strtod(texts[i], NULL);
  }
  column->valid = valid;
  column->f64 = numbers;
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
      while (known < table.num_columns && strcmp(table.columns[known].name.data, name + (name[0] == '#')) != 0) ++known;
      if (known == table.num_columns) mortise_test_add_column(&table, name, rows, n);
    }
  }
  return table;
}
static inline void mortise_test_free_columns(mortise_test_table* table) {
  for (uint64_t k = 0; k < table->num_columns; ++k) {
    mortise_test_free_column(table->columns[k].text);
    free((void*)(uintptr_t)table->columns[k].valid);
    free((void*)(uintptr_t)table->columns[k].f64);
  }
}

static inline void mortise_test_row_value(void* sink, int64_t row, mortise_text name, double value) MORTISE_NOEXCEPT {
  (void)sink;
  (void)row;
  (void)name;
  (void)value;
}

/* Scores the rows: rewards[i] belongs to rows[i], NaN where the reward does not apply or failed. All rows are of one
 * group. Each has the completion ids 0, 1 ... num_ids - 1, and token_rewards, if not null, takes num_ids numbers of
 * each row, 0 where the plugin gives none. */
static inline int32_t mortise_test_score_tokens(mortise_test_plugin* plugin, const mortise_test_row* rows, int64_t n,
                                                int64_t num_ids, double* rewards, float* token_rewards) {
  const mortise_reward_vtable* vtable = (const mortise_reward_vtable*)plugin->vtable;
  const char** texts = (const char**)mortise_test_memory((uint64_t)n * sizeof(char*));
  int64_t* zeros = (int64_t*)mortise_test_memory((uint64_t)n * sizeof(int64_t));
  int64_t* places = (int64_t*)mortise_test_memory((uint64_t)n * sizeof(int64_t));
  int32_t* finish = (int32_t*)mortise_test_memory((uint64_t)n * sizeof(int32_t));
  uint64_t* no_offsets = (uint64_t*)mortise_test_memory((uint64_t)(n + 1) * sizeof(uint64_t));
  int64_t* ids = (int64_t*)mortise_test_memory((uint64_t)(n * num_ids) * sizeof(int64_t));
  uint64_t* id_offsets = (uint64_t*)mortise_test_memory((uint64_t)(n + 1) * sizeof(uint64_t));
  mortise_reward_in in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.num_rows = n;
  for (int64_t i = 0; i < n; ++i) texts[i] = rows[i].prompt;
  in.prompt = mortise_test_join(texts, n);
  for (int64_t i = 0; i < n; ++i) texts[i] = rows[i].completion;
  in.completion = mortise_test_join(texts, n);
  for (int64_t i = 0; i < n; ++i) texts[i] = NULL;
  in.messages = mortise_test_join(texts, n);
  for (int64_t i = 0; i < n; ++i) places[i] = i;
  for (int64_t t = 0; t < n * num_ids; ++t) ids[t] = t % num_ids;
  for (int64_t i = 0; i <= n; ++i) id_offsets[i] = (uint64_t)(i * num_ids);
  in.prompt_ids.ids = zeros;
  in.prompt_ids.offsets = no_offsets;
  in.completion_ids.ids = ids;
  in.completion_ids.offsets = id_offsets;
  in.finish_reason = finish; /* MORTISE_FINISH_STOP */
  in.group_index = zeros;
  in.sample_index = in.row_id = places;
  mortise_test_table table = mortise_test_columns(rows, n);
  for (uint64_t k = 0; k < table.num_columns; ++k) table.pointers[k] = &table.columns[k];
  in.num_columns = table.num_columns;
  in.columns = table.pointers;
  in.step = 1;
  mortise_reward_out out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.rewards = rewards;
  out.row_value = mortise_test_row_value;
  if (token_rewards != NULL) memset(token_rewards, 0, (size_t)(n * num_ids) * sizeof(float));
  if ((plugin->descriptor->flags & MORTISE_FLAG_TOKEN_REWARDS) != 0) out.token_rewards = token_rewards;
  for (int64_t i = 0; i < n; ++i) rewards[i] = (double)NAN;
  const int32_t status = vtable->score(mortise_test_self(plugin), plugin->call, &in, &out);
  mortise_test_end_call(plugin);
  mortise_test_free_columns(&table);
  mortise_test_free_column(in.prompt);
  mortise_test_free_column(in.completion);
  mortise_test_free_column(in.messages);
  free((void*)texts);
  free(zeros);
  free(places);
  free(finish);
  free(no_offsets);
  free(ids);
  free(id_offsets);
  return status;
}

/* The same without token ids. */
static inline int32_t mortise_test_score(mortise_test_plugin* plugin, const mortise_test_row* rows, int64_t n,
                                         double* rewards) {
  return mortise_test_score_tokens(plugin, rows, n, 0, rewards, NULL);
}

#endif /* MORTISE_TESTING_REWARD_H_ */
