/* Calls of an environment in an author's test: one episode at a time. See host.h. */
#ifndef MORTISE_TESTING_ENVIRONMENT_H_
#define MORTISE_TESTING_ENVIRONMENT_H_

#include "../kinds/environment.h"
#include "host.h"

#define MORTISE_TEST_MAX_MESSAGES 4096

/* The answer to a reset or a turn. */
typedef struct mortise_test_answer {
  int32_t given; /* 0: the episode failed; the plugin's call has the text */
  int32_t done;
  double reward;                            /* NaN: none */
  char messages[MORTISE_TEST_MAX_MESSAGES]; /* JSON, with a zero at its end */
  int64_t num_calls, num_failed_calls;
} mortise_test_answer;

static inline void mortise_test_observe(void* context, const mortise_observation* from) MORTISE_NOEXCEPT {
  mortise_test_answer* to = (mortise_test_answer*)context;
  if (to->given != 0) mortise_test_die("two observations for one episode", "");
  if (from->messages.size >= sizeof to->messages) mortise_test_die("messages longer than a test can take", "");
  to->given = 1;
  to->done = from->done;
  to->reward = from->reward;
  if (from->messages.size > 0) memcpy(to->messages, from->messages.data, (size_t)from->messages.size);
  to->messages[from->messages.size] = 0;
  to->num_calls = from->num_calls;
  to->num_failed_calls = from->num_failed_calls;
}

static inline mortise_observation_sink mortise_test_observe_into(mortise_test_answer* answer) {
  mortise_observation_sink sink;
  memset(&sink, 0, sizeof sink);
  memset(answer, 0, sizeof *answer);
  answer->reward = (double)NAN;
  sink.struct_size = sizeof sink;
  sink.context = answer;
  sink.observation = mortise_test_observe;
  return sink;
}

static inline mortise_text mortise_test_text(const char* text) {
  mortise_text out;
  out.data = text;
  out.size = strlen(text);
  return out;
}

/* Begins an episode. `messages` and `columns` are JSON: a list and an object. */
static inline int32_t mortise_test_reset(mortise_test_plugin* plugin, int64_t episode, uint64_t seed,
                                         const char* messages, const char* columns, mortise_test_answer* answer) {
  const mortise_environment_vtable* vtable = (const mortise_environment_vtable*)plugin->vtable;
  mortise_observation_sink sink = mortise_test_observe_into(answer);
  mortise_episode_start start;
  const mortise_episode_start* starts[1];
  memset(&start, 0, sizeof start);
  start.struct_size = sizeof start;
  start.episode = episode;
  start.seed = seed;
  start.messages = mortise_test_text(messages);
  start.columns = mortise_test_text(columns);
  starts[0] = &start;
  (void)mortise_test_self(plugin);
  answer->given = vtable->reset == NULL ? 1 : 0;
  const int32_t status =
      vtable->reset == NULL ? MORTISE_OK : vtable->reset(plugin->self, plugin->call, starts, 1, &sink);
  mortise_test_end_call(plugin);
  return status;
}

/* Makes a turn. `calls` is the JSON list of the tool calls in it: "[]" for none. */
static inline int32_t mortise_test_turn(mortise_test_plugin* plugin, int64_t episode, int64_t turn, const char* text,
                                        const char* calls, mortise_test_answer* answer) {
  const mortise_environment_vtable* vtable = (const mortise_environment_vtable*)plugin->vtable;
  mortise_observation_sink sink = mortise_test_observe_into(answer);
  mortise_episode_action action;
  const mortise_episode_action* actions[1];
  memset(&action, 0, sizeof action);
  action.struct_size = sizeof action;
  action.finish_reason = MORTISE_FINISH_STOP;
  action.episode = episode;
  action.turn = turn;
  action.text = mortise_test_text(text);
  action.calls = mortise_test_text(calls);
  actions[0] = &action;
  (void)mortise_test_self(plugin);
  const int32_t status = vtable->step(plugin->self, plugin->call, actions, 1, &sink);
  mortise_test_end_call(plugin);
  return status;
}

static inline int32_t mortise_test_end_episode(mortise_test_plugin* plugin, int64_t episode) {
  const mortise_environment_vtable* vtable = (const mortise_environment_vtable*)plugin->vtable;
  (void)mortise_test_self(plugin);
  const int32_t status = vtable->close == NULL ? MORTISE_OK : vtable->close(plugin->self, plugin->call, &episode, 1);
  mortise_test_end_call(plugin);
  return status;
}

#endif /* MORTISE_TESTING_ENVIRONMENT_H_ */
