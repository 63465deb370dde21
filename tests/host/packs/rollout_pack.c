/* A rollout backend in plain C that answers every prompt with its own ids, and, by parameter `fault`, breaks the
 * contract of poll one way each. */
#include <stdlib.h>
#include <string.h>

#include "mortise/mortise.h"

#define MAX_PENDING 64

typedef struct pending {
  int64_t request_id, sample, num_ids, max_new;
  int64_t ids[16];
} pending;

typedef struct backend {
  const mortise_host* host;
  int64_t version;
  uint64_t count;
  pending items[MAX_PENDING];
  char fault[32];
} backend;

static int32_t create(const mortise_host* host, mortise_call* call, void** self) {
  backend* b = calloc(1, sizeof *b);
  if (b == NULL) return MORTISE_RESOURCE_EXHAUSTED;
  mortise_text fault;
  if (host->param_text(call, "fault", &fault) != MORTISE_OK) return MORTISE_INTERNAL;
  memcpy(b->fault, fault.data, fault.size);
  b->host = host;
  *self = b;
  return MORTISE_OK;
}

static int32_t set_version(void* self, mortise_call* call, int64_t version) {
  (void)call;
  ((backend*)self)->version = version;
  return MORTISE_OK;
}

static int32_t submit(void* self, mortise_call* call, const mortise_rollout_request* const* requests,
                      uint64_t num_requests, uint64_t* accepted) {
  backend* b = self;
  (void)call;
  *accepted = 0;
  for (uint64_t i = 0; i < num_requests; ++i) {
    const mortise_rollout_request* r = requests[i];
    if (b->count + (uint64_t)r->num_samples > MAX_PENDING || i == 2) return MORTISE_OK; /* at most two at a time */
    for (int64_t s = 0; s < r->num_samples; ++s) {
      pending* p = &b->items[b->count++];
      p->request_id = r->request_id;
      p->sample = s;
      p->max_new = r->sampling->max_new_tokens;
      p->num_ids = r->num_prompt_ids < p->max_new ? r->num_prompt_ids : p->max_new;
      if (p->num_ids > 16) p->num_ids = 16;
      memcpy(p->ids, r->prompt_ids, (size_t)p->num_ids * sizeof(int64_t));
    }
    ++*accepted;
  }
  if (strcmp(b->fault, "took_more") == 0) *accepted = num_requests + 1;
  return MORTISE_OK;
}

static int32_t poll(void* self, mortise_call* call, const mortise_rollout_sink* sink, int64_t timeout_ns,
                    uint64_t* outstanding) {
  backend* b = self;
  (void)call;
  (void)timeout_ns;
  const int lose = strcmp(b->fault, "loses") == 0;
  while (b->count > 0) {
    pending* p = &b->items[--b->count];
    float log_prob[16];
    for (int i = 0; i < 16; ++i) log_prob[i] = -1.0f;
    mortise_rollout_sequence s = {.struct_size = sizeof s,
                                  .finish_reason = MORTISE_FINISH_STOP,
                                  .request_id = p->request_id,
                                  .sample_index = p->sample,
                                  .weight_version = b->version,
                                  .num_ids = p->num_ids,
                                  .ids = p->ids,
                                  .log_prob = log_prob};
    if (lose && p->sample == 0) continue;
    if (strcmp(b->fault, "unknown_request") == 0) s.request_id += 1000;
    if (strcmp(b->fault, "bad_sample") == 0) s.sample_index = 99;
    if (strcmp(b->fault, "too_long") == 0) s.num_ids = p->max_new + 1;
    if (strcmp(b->fault, "negative_id") == 0) p->ids[0] = -1;
    if (strcmp(b->fault, "bad_reason") == 0) s.finish_reason = 9;
    if (strcmp(b->fault, "nan_log_prob") == 0) memset(log_prob, 0xff, sizeof log_prob);
    if (strcmp(b->fault, "empty") == 0) s.num_ids = 0;
    const int stop = sink->sequence(sink->context, &s);
    if (strcmp(b->fault, "twice") == 0) sink->sequence(sink->context, &s);
    if (stop) break;
  }
  *outstanding = b->count;
  return MORTISE_OK;
}

static const mortise_rollout_backend_vtable vtable = {.struct_size = sizeof(mortise_rollout_backend_vtable),
                                                      .create = create,
                                                      .destroy = free,
                                                      .set_version = set_version,
                                                      .submit = submit,
                                                      .poll = poll};
/* Part of the trio for weights: refused. */
static int32_t end_update(void* self, mortise_call* call) {
  (void)self;
  (void)call;
  return MORTISE_OK;
}
static const mortise_rollout_backend_vtable partial = {.struct_size = sizeof(mortise_rollout_backend_vtable),
                                                       .create = create,
                                                       .destroy = free,
                                                       .set_version = set_version,
                                                       .end_update = end_update,
                                                       .submit = submit,
                                                       .poll = poll};

static const mortise_param fault = {.struct_size = sizeof(mortise_param),
                                    .type = MORTISE_PARAM_TEXT,
                                    .name = "fault",
                                    .default_text = "",
                                    .doc = "what to do wrong"};
static const mortise_param* const params[] = {&fault};
static const mortise_descriptor echo = {.struct_size = sizeof(mortise_descriptor),
                                        .kind = MORTISE_KIND_ROLLOUT_BACKEND,
                                        .name = "echo",
                                        .summary = "the prompt again",
                                        .num_params = 1,
                                        .params = params,
                                        .vtable = &vtable};
static const mortise_descriptor partial_weights = {.struct_size = sizeof(mortise_descriptor),
                                                   .kind = MORTISE_KIND_ROLLOUT_BACKEND,
                                                   .name = "partial_weights",
                                                   .summary = "half a trio",
                                                   .num_params = 1,
                                                   .params = params,
                                                   .vtable = &partial};
static const mortise_descriptor* const plugins[] = {&echo, &partial_weights};

const mortise_pack mortise_pack_v1 = {.struct_size = sizeof(mortise_pack),
                                      .abi_minor = 1,
                                      .min_host_minor = 1,
                                      .num_plugins = 2,
                                      .id = "test.rollout",
                                      .version = "1.0.0",
                                      .plugins = plugins};
