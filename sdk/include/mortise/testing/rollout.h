/* Calls of a rollout backend in an author's test: a prompt in, its completions out. See host.h. */
#ifndef MORTISE_TESTING_ROLLOUT_H_
#define MORTISE_TESTING_ROLLOUT_H_

#include "host.h"

#define MORTISE_TEST_MAX_SEQUENCES 64
#define MORTISE_TEST_MAX_IDS 256

/* A sequence from the sink, cut at MORTISE_TEST_MAX_IDS. */
typedef struct mortise_test_sequence {
  int64_t request_id, sample_index, weight_version, num_ids;
  int32_t finish_reason;
  int32_t has_log_prob;
  int64_t ids[MORTISE_TEST_MAX_IDS];
  float log_prob[MORTISE_TEST_MAX_IDS];
} mortise_test_sequence;

typedef struct mortise_test_sequences {
  int64_t count;
  mortise_test_sequence all[MORTISE_TEST_MAX_SEQUENCES];
} mortise_test_sequences;

static inline int32_t mortise_test_take(void* context, const mortise_rollout_sequence* from) MORTISE_NOEXCEPT {
  mortise_test_sequences* to = (mortise_test_sequences*)context;
  if (to->count == MORTISE_TEST_MAX_SEQUENCES) mortise_test_die("more sequences than a test can take", "");
  mortise_test_sequence* s = &to->all[to->count++];
  memset(s, 0, sizeof *s);
  s->request_id = from->request_id;
  s->sample_index = from->sample_index;
  s->weight_version = from->weight_version;
  s->num_ids = from->num_ids;
  s->finish_reason = from->finish_reason;
  s->has_log_prob = from->log_prob != NULL;
  for (int64_t t = 0; t < from->num_ids && t < MORTISE_TEST_MAX_IDS; ++t) {
    s->ids[t] = from->ids[t];
    if (from->log_prob != NULL) s->log_prob[t] = from->log_prob[t];
  }
  return 0;
}

/* Sets the backend's `version`, submits one request of `num_samples` completions of at most `max_new_tokens`, and polls
 * until nothing is outstanding. `out` gets all samples. A backend that is not done after 10,000 polls gives
 * MORTISE_DEADLINE_EXCEEDED. */
static inline int32_t mortise_test_generate(mortise_test_plugin* plugin, const int64_t* prompt_ids,
                                            int64_t num_prompt_ids, int64_t num_samples, int64_t max_new_tokens,
                                            int64_t version, mortise_test_sequences* out) {
  const mortise_rollout_backend_vtable* vtable = (const mortise_rollout_backend_vtable*)plugin->vtable;
  mortise_sampling sampling;
  memset(&sampling, 0, sizeof sampling);
  sampling.struct_size = sizeof sampling;
  sampling.max_new_tokens = max_new_tokens;
  sampling.temperature = sampling.top_p = 1.0;
  mortise_rollout_request request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.request_id = 7;
  request.prompt_ids = prompt_ids;
  request.num_prompt_ids = num_prompt_ids;
  request.num_samples = num_samples;
  request.seed = 1;
  request.step = 1;
  request.sampling = &sampling;
  const mortise_rollout_request* requests[1] = {&request};
  mortise_rollout_sink sink;
  memset(&sink, 0, sizeof sink);
  sink.struct_size = sizeof sink;
  sink.context = out;
  sink.sequence = mortise_test_take;
  out->count = 0;
  (void)mortise_test_self(plugin);
  uint64_t accepted = 0, outstanding = 1;
  int32_t status = vtable->set_version(plugin->self, plugin->call, version);
  int polls = 0;
  while (status == MORTISE_OK && (accepted == 0 || outstanding > 0)) {
    if (++polls > 10000) return MORTISE_DEADLINE_EXCEEDED;
    if (accepted == 0) status = vtable->submit(plugin->self, plugin->call, requests, 1, &accepted);
    if (status == MORTISE_OK) status = vtable->poll(plugin->self, plugin->call, &sink, 1000000, &outstanding);
    mortise_test_end_call(plugin);
  }
  return status;
}

#endif /* MORTISE_TESTING_ROLLOUT_H_ */
