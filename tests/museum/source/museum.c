/* The museum's pack in C11: one plugin "piece" of every kind. museum.cpp and rust/ compute the same.
 *
 * All numbers of the museum's inputs are multiples of 1/8 with few bits, so that every order of operations gives the same
 * floats. -DNEWER makes the tables as an author of a later minor did, with fields behind those that the host knows.
 */
#include <mortise/mortise.h>
#include <stdlib.h>
#include <string.h>

#ifdef NEWER
#define ROOM void* later[6];
#define LATER \
  , { (void*)8, (void*)8, (void*)8, (void*)8, (void*)8, (void*)8 } /* no host of today looks at them */
#else
#define ROOM
#define LATER
#endif

typedef struct piece {
  const mortise_host* host;
  double scale;
  int64_t number;
  int32_t flip;
  char column[64];
  int64_t version;
  mortise_rollout_request requests[8];
  int64_t prompts[8][16];
  int64_t lengths[8];
  int num_requests;
} piece;

static int32_t make(const mortise_host* host, mortise_call* call, void** self, int has_scale, int has_number,
                    int is_reward) {
  piece* p = calloc(1, sizeof *p);
  int32_t code = p == NULL ? MORTISE_RESOURCE_EXHAUSTED : MORTISE_OK;
  mortise_text column = {NULL, 0};
  if (code == MORTISE_OK && has_scale) code = host->param_f64(call, "scale", &p->scale);
  if (code == MORTISE_OK && has_number) code = host->param_i64(call, "number", &p->number);
  if (code == MORTISE_OK && is_reward) code = host->param_bool(call, "flip", &p->flip);
  if (code == MORTISE_OK && is_reward) code = host->param_text(call, "column", &column);
  if (code != MORTISE_OK || column.size >= sizeof p->column) {
    free(p);
    return code != MORTISE_OK ? code : MORTISE_INVALID_ARGUMENT;
  }
  if (column.size > 0) memcpy(p->column, column.data, column.size);
  p->host = host;
  *self = p;
  return MORTISE_OK;
}
static int32_t make_loss(const mortise_host* host, mortise_call* call, void** self) {
  return make(host, call, self, 1, 0, 0);
}
static int32_t make_estimator(const mortise_host* host, mortise_call* call, void** self) {
  return make(host, call, self, 0, 1, 0);
}
static int32_t make_reward(const mortise_host* host, mortise_call* call, void** self) {
  return make(host, call, self, 1, 1, 1);
}
static const float* floats(const mortise_tensor* t) { return mortise_tensor_data(t); }

static int32_t loss(void* self, mortise_call* call, const mortise_policy_loss_in* in, mortise_policy_loss_out* out) {
  const piece* p = self;
  const uint8_t* mask = mortise_tensor_data(in->response_mask);
  float *value = mortise_tensor_data(out->loss), *grad = mortise_tensor_data(out->grad_log_prob);
  double count = 0;
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    const double d = (double)floats(in->log_prob)[t] - (double)floats(in->old_log_prob)[t];
    const double a = p->scale * (double)floats(in->advantages)[t];
    if (mask[t] == 0) continue;
    value[t] = (float)(-a * (1 + d + d * d / 2));
    if (grad != NULL) grad[t] = (float)((double)floats(in->weight)[t] * (-a * (1 + d)));
    count += 1;
  }
  p->host->metric(call, (mortise_text){"museum/tokens", 13}, count, count, MORTISE_REDUCE_MEAN);
  return MORTISE_OK;
}

static int32_t kl(void* self, mortise_call* call, const mortise_kl_estimator_in* in, mortise_kl_estimator_out* out) {
  const piece* p = self;
  const uint8_t* mask = mortise_tensor_data(in->response_mask);
  float *value = mortise_tensor_data(out->kl), *grad = mortise_tensor_data(out->grad_log_prob);
  (void)call;
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    const double d = (double)floats(in->log_prob)[t] - (double)floats(in->ref_log_prob)[t];
    if (mask[t] == 0) continue;
    value[t] = (float)(p->scale * d * d / 2);
    if (grad != NULL) grad[t] = (float)((double)floats(in->weight)[t] * p->scale * d);
  }
  return MORTISE_OK;
}

static double outcome(const mortise_advantage_estimator_in* in, int64_t row) {
  double sum = 0;
  for (int64_t t = in->layout->row_offsets[row]; t < in->layout->row_offsets[row + 1]; ++t)
    sum += (double)floats(in->token_level_rewards)[t];
  return sum;
}
static int32_t advantage(void* self, mortise_call* call, const mortise_advantage_estimator_in* in,
                         mortise_advantage_estimator_out* out) {
  const piece* p = self;
  const uint8_t *mask = mortise_tensor_data(in->response_mask), *valid = mortise_tensor_data(in->row_valid);
  float *advantages = mortise_tensor_data(out->advantages), *returns = mortise_tensor_data(out->returns);
  (void)call;
  for (int64_t row = 0; row < in->layout->num_rows; ++row) {
    double sum = 0, count = 0;
    if (valid != NULL && valid[row] == 0) continue;
    for (int64_t other = 0; other < in->layout->num_rows; ++other) {
      if (in->layout->group_index[other] != in->layout->group_index[row] || (valid != NULL && valid[other] == 0))
        continue;
      sum += outcome(in, other);
      count += 1;
    }
    for (int64_t t = in->layout->row_offsets[row]; t < in->layout->row_offsets[row + 1]; ++t)
      if (mask[t] != 0) advantages[t] = returns[t] = (float)(outcome(in, row) - sum / count + (double)p->number);
  }
  return MORTISE_OK;
}

static mortise_text cell(mortise_text_column column, int64_t row) {
  return (mortise_text){column.bytes + column.offsets[row], column.offsets[row + 1] - column.offsets[row]};
}
static int32_t score(void* self, mortise_call* call, const mortise_reward_in* in, mortise_reward_out* out) {
  const piece* p = self;
  (void)call;
  for (int64_t row = 0; row < in->num_rows; ++row) {
    const mortise_text completion = cell(in->completion, row);
    for (uint64_t k = 0; k < in->num_columns; ++k) {
      const mortise_column* c = in->columns[k];
      if (c->name.size != strlen(p->column) || memcmp(c->name.data, p->column, c->name.size) != 0) continue;
      if (c->type != MORTISE_COLUMN_TEXT || (c->valid != NULL && c->valid[row] == 0)) continue;
      const mortise_text answer = cell(c->text, row);
      const int hit = answer.size == completion.size && memcmp(answer.data, completion.data, answer.size) == 0;
      const double value = (double)completion.size * p->scale + (double)p->number + (hit ? 100 : 0);
      out->rewards[row] = p->flip ? -value : value;
    }
  }
  return MORTISE_OK;
}

static int32_t set_version(void* self, mortise_call* call, int64_t version) {
  (void)call;
  ((piece*)self)->version = version;
  return MORTISE_OK;
}
static int32_t submit(void* self, mortise_call* call, const mortise_rollout_request* const* requests, uint64_t num,
                      uint64_t* accepted) {
  piece* p = self;
  (void)call;
  for (*accepted = 0; *accepted < num && p->num_requests < 8; ++*accepted) {
    const mortise_rollout_request* r = requests[*accepted];
    const int64_t n = r->num_prompt_ids < 16 ? r->num_prompt_ids : 16;
    p->requests[p->num_requests] = *r;
    p->lengths[p->num_requests] = r->sampling->max_new_tokens < 16 ? r->sampling->max_new_tokens : 16;
    memcpy(p->prompts[p->num_requests], r->prompt_ids, (size_t)n * sizeof(int64_t));
    p->requests[p->num_requests++].num_prompt_ids = n;
  }
  return MORTISE_OK;
}
static int32_t poll(void* self, mortise_call* call, const mortise_rollout_sink* sink, int64_t timeout_ns,
                    uint64_t* outstanding) {
  piece* p = self;
  (void)call;
  (void)timeout_ns;
  for (int i = 0; i < p->num_requests; ++i) {
    const mortise_rollout_request* r = &p->requests[i];
    for (int64_t s = 0; s < r->num_samples; ++s) {
      int64_t ids[16];
      float log_prob[16];
      for (int64_t j = 0; j < p->lengths[i]; ++j) {
        ids[j] = (p->prompts[i][j % r->num_prompt_ids] * 7 + r->first_row_id + 3 * s + j) % p->number;
        log_prob[j] = -(float)(j + 1) / 8;
      }
      const mortise_rollout_sequence sequence = {.struct_size = sizeof sequence,
                                                 .finish_reason = MORTISE_FINISH_LENGTH,
                                                 .request_id = r->request_id,
                                                 .sample_index = s,
                                                 .weight_version = p->version,
                                                 .num_ids = p->lengths[i],
                                                 .ids = ids,
                                                 .log_prob = log_prob};
      sink->sequence(sink->context, &sequence);
    }
  }
  p->num_requests = 0;
  *outstanding = 0;
  return MORTISE_OK;
}

/* An episode has two turns. The reward of a turn depends on its ids and its text. */
static int32_t step(void* self, mortise_call* call, const mortise_episode_action* const* actions, uint64_t num,
                    const mortise_observation_sink* sink) {
  static const char more[] = "[{\"role\":\"user\",\"content\":\"more\"}]";
  piece* p = self;
  (void)call;
  for (uint64_t i = 0; i < num; ++i) {
    const mortise_episode_action* a = actions[i];
    const int done = a->turn >= 1;
    const mortise_observation out = {.struct_size = sizeof out,
                                     .done = done,
                                     .episode = a->episode,
                                     .reward = (double)(p->number * a->num_ids) + (double)a->text.size / 8,
                                     .messages = {done ? NULL : more, done ? 0 : sizeof more - 1}};
    sink->observation(sink->context, &out);
  }
  return MORTISE_OK;
}

#define VTABLE(kind, type, make, slots) \
  static const struct {                 \
    type now;                           \
    ROOM                                \
  } kind##_table = {{.struct_size = sizeof kind##_table, .create = make, .destroy = free, slots} LATER}
#define COMMA ,
VTABLE(loss, mortise_policy_loss_vtable, make_loss, .compute = loss);
VTABLE(kl, mortise_kl_estimator_vtable, make_loss, .compute = kl);
VTABLE(advantage, mortise_advantage_estimator_vtable, make_estimator, .compute = advantage);
VTABLE(reward, mortise_reward_vtable, make_reward, .score = score);
VTABLE(rollout, mortise_rollout_backend_vtable, make_estimator,
       .set_version = set_version COMMA.submit = submit COMMA.poll = poll);
VTABLE(environment, mortise_environment_vtable, make_estimator, .step = step);

#define PARAM(id, kind, word, text, says) \
  static const mortise_param id = {       \
      .struct_size = sizeof(mortise_param), .type = kind, .name = word, .default_text = text, .doc = says}
PARAM(scale, MORTISE_PARAM_F64, "scale", "1.5", "factor");
PARAM(number, MORTISE_PARAM_I64, "number", "2", "summand; of the rollout backend: size of the vocabulary");
PARAM(flip, MORTISE_PARAM_BOOL, "flip", "false", "changes the sign");
PARAM(column, MORTISE_PARAM_TEXT, "column", "answer", "column of the answer");
static const mortise_param* const loss_params[] = {&scale};
static const mortise_param* const estimator_params[] = {&number};
static const mortise_param* const reward_params[] = {&scale, &number, &flip, &column};

#define PLUGIN(id, kind_id, couples, num, list, table) \
  static const struct {                                \
    mortise_descriptor now;                            \
    ROOM                                               \
  } id = {{.struct_size = sizeof id,                   \
           .kind = kind_id,                            \
           .name = "piece",                            \
           .summary = "a piece of the museum",         \
           .coupling = couples,                        \
           .num_params = num,                          \
           .params = list,                             \
           .vtable = &table} LATER}
PLUGIN(loss_plugin, MORTISE_KIND_POLICY_LOSS, MORTISE_COUPLING_TOKEN, 1, loss_params, loss_table);
PLUGIN(kl_plugin, MORTISE_KIND_KL_ESTIMATOR, MORTISE_COUPLING_TOKEN, 1, loss_params, kl_table);
PLUGIN(advantage_plugin, MORTISE_KIND_ADVANTAGE_ESTIMATOR, MORTISE_COUPLING_UPDATE, 1, estimator_params,
       advantage_table);
PLUGIN(reward_plugin, MORTISE_KIND_REWARD, MORTISE_COUPLING_TOKEN, 4, reward_params, reward_table);
PLUGIN(rollout_plugin, MORTISE_KIND_ROLLOUT_BACKEND, MORTISE_COUPLING_TOKEN, 1, estimator_params, rollout_table);
PLUGIN(environment_plugin, MORTISE_KIND_ENVIRONMENT, MORTISE_COUPLING_TOKEN, 1, estimator_params, environment_table);
static const mortise_descriptor* const plugins[] = {&loss_plugin.now,   &kl_plugin.now,      &advantage_plugin.now,
                                                    &reward_plugin.now, &rollout_plugin.now, &environment_plugin.now};

#ifdef NEWER
#define BUILT_FOR 9
#else
#define BUILT_FOR MORTISE_PACK_MINOR
#endif
const mortise_pack mortise_pack_v1 = {.struct_size = sizeof(mortise_pack),
                                      .abi_minor = BUILT_FOR,
                                      .min_host_minor = MORTISE_MIN_HOST_MINOR,
                                      .num_plugins = 6,
                                      .id = MORTISE_PACK_ID,
                                      .version = MORTISE_PACK_VERSION,
                                      .plugins = plugins};
