/* A pack of the museum with what is around the kinds: mortise.row_text, mortise.reads, mortise.state, mortise.device,
 * `open`, a role, token rewards, and every optional slot of an environment. Compiled with the
 * headers of 0.2 (-DDRAFT) it is a pack of the drafts mortise.environment/0 and mortise.row_text/0.
 */
#include <math.h>
#include <mortise/mortise.h>
#include <stdlib.h>
#include <string.h>
#ifdef DRAFT
#include <mortise/ext/draft/row_text.h>
#include <mortise/kinds/environment.h>
#define PACK mortise_pack_v0
#define MINOR MORTISE_TARGET_MINOR
#define HOST_MINOR 2
#else
#define PACK mortise_pack_v1
#define MINOR MORTISE_PACK_MINOR
#define HOST_MINOR 0
#endif

typedef struct piece {
  const mortise_host* host;
  const mortise_row_text* texts; /* asked for once, before any row */
  int64_t number;
  int64_t num_calls; /* its state */
} piece;

static mortise_text text_of(const char* s) { return (mortise_text){s, strlen(s)}; }

static int32_t open_pack(const mortise_host* host) {
  return host->abi_minor + 1 > HOST_MINOR ? MORTISE_OK : MORTISE_FAILED_PRECONDITION;
}

static int32_t make(const mortise_host* host, mortise_call* call, void** self) {
  piece* p = calloc(1, sizeof *p);
  if (p == NULL) return MORTISE_RESOURCE_EXHAUSTED;
  p->host = host;
  p->texts = host->get_extension(MORTISE_EXT_ROW_TEXT);
  const int32_t code = host->param_i64(call, "number", &p->number);
  if (code != MORTISE_OK || p->texts == NULL) {
    free(p);
    return code != MORTISE_OK ? code : host->fail(call, MORTISE_FAILED_PRECONDITION, text_of("no mortise.row_text"));
  }
  *self = p;
  return MORTISE_OK;
}

static int32_t save(void* self, mortise_call* call, const mortise_state_sink* sink) {
  piece* p = self;
  (void)call;
  sink->write(sink->context, (mortise_bytes){&p->num_calls, sizeof p->num_calls});
  return MORTISE_OK;
}
static int32_t load(void* self, mortise_call* call, mortise_bytes bytes) {
  piece* p = self;
  (void)call;
  if (bytes.size != sizeof p->num_calls) return MORTISE_DATA_LOSS;
  memcpy(&p->num_calls, bytes.data, sizeof p->num_calls);
  return MORTISE_OK;
}
static const mortise_state state = {.struct_size = sizeof state, .save = save, .load = load};
static const void* of_instance(void* self, const char* id) {
  (void)self;
  return strcmp(id, MORTISE_EXT_STATE) == 0 ? &state : NULL;
}

static int32_t tell(const mortise_host* host, mortise_call* call, const mortise_reads_sink* sink) {
  const mortise_text file = text_of("table.txt");
  const mortise_file_set set = {.struct_size = sizeof set,
                                .param = text_of("table"),
                                .name = text_of("tables"),
                                .what = text_of("tables of the piece"),
                                .folder = text_of("/museum"),
                                .num_files = 1,
                                .files = &file};
  const mortise_needed_column column = {
      .struct_size = sizeof column, .param = text_of("table"), .name = text_of("level"), .who = text_of("the piece")};
  mortise_text table;
  const int32_t code = host->param_text(call, "table", &table);
  if (code != MORTISE_OK) return code;
  sink->files(sink->context, &set);
  sink->column(sink->context, &column);
  return MORTISE_OK;
}
static const mortise_reads reads = {.struct_size = sizeof reads, .tell = tell};
static const int32_t device_types[] = {MORTISE_CPU, MORTISE_CUDA};
static const mortise_device device = {
    .struct_size = sizeof device, .num_device_types = 2, .device_types = device_types};
static const void* of_plugin(const char* id) {
  if (strcmp(id, MORTISE_EXT_DEVICE) == 0) return &device;
  return strcmp(id, MORTISE_EXT_READS) == 0 ? &reads : NULL;
}

/* A row's reward is the number of calls so far. Its first token gets 1/8. An empty completion fails alone. */
static int32_t score(void* self, mortise_call* call, const mortise_reward_in* in, mortise_reward_out* out) {
  piece* p = self;
  ++p->num_calls;
  for (int64_t i = 0; i < in->num_rows; ++i) {
    const uint64_t begin = in->completion.offsets[i], size = in->completion.offsets[i + 1] - begin;
    if (size == 0) {
      p->host->fail_row(call, i, MORTISE_INVALID_ARGUMENT, text_of("an empty completion"));
      continue;
    }
    out->rewards[i] = (double)p->num_calls;
    out->row_value(out->sink, i, text_of("size"), (double)size);
    p->texts->note(out->sink, i, text_of("pred"), (mortise_text){in->completion.bytes + begin, size});
    const uint64_t first = in->completion_ids.offsets[i];
    if (out->token_rewards != NULL && in->completion_ids.offsets[i + 1] > first)
      out->token_rewards[first - in->completion_ids.offsets[0]] = 0.125F;
  }
  return MORTISE_OK;
}
static const mortise_reward_vtable reward_table = {
    .struct_size = sizeof reward_table, .create = make, .destroy = free, .get_extension = of_instance, .score = score};

static int32_t describe(void* self, mortise_call* call, const mortise_observation_sink* sink) {
  (void)self;
  (void)call;
  sink->description(sink->context, text_of("{\"tools\":[],\"rewards\":true}"));
  return MORTISE_OK;
}
static int32_t reset(void* self, mortise_call* call, const mortise_episode_start* const* episodes, uint64_t num,
                     const mortise_observation_sink* sink) {
  (void)self;
  (void)call;
  for (uint64_t i = 0; i < num; ++i) {
    const mortise_observation out = {.struct_size = sizeof out,
                                     .episode = episodes[i]->episode,
                                     .reward = NAN,
                                     .messages = text_of("[{\"role\":\"user\",\"content\":\"begin\"}]")};
    sink->observation(sink->context, &out);
  }
  return MORTISE_OK;
}
/* As in museum.c. */
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
static int32_t close_episodes(void* self, mortise_call* call, const int64_t* episodes, uint64_t num) {
  (void)self;
  (void)call;
  (void)episodes;
  return num > 0 ? MORTISE_OK : MORTISE_INVALID_ARGUMENT;
}
static const mortise_environment_vtable environment_table = {.struct_size = sizeof environment_table,
                                                             .create = make,
                                                             .destroy = free,
                                                             .get_extension = of_instance,
                                                             .describe = describe,
                                                             .reset = reset,
                                                             .step = step,
                                                             .close = close_episodes};

static const mortise_param number = {
    .struct_size = sizeof number, .type = MORTISE_PARAM_I64, .name = "number", .default_text = "2", .doc = "factor"};
static const mortise_param table = {.struct_size = sizeof table,
                                    .type = MORTISE_PARAM_TEXT,
                                    .name = "table",
                                    .default_text = "",
                                    .doc = "a file",
                                    .role = MORTISE_ROLE_FILE};
static const mortise_param* const params[] = {&number, &table};
static const mortise_descriptor reward_plugin = {
    .struct_size = sizeof reward_plugin,
    .flags = MORTISE_FLAG_TELLS_READS | MORTISE_FLAG_TOKEN_REWARDS,
    .kind = MORTISE_KIND_REWARD,
    .name = "texts",
    .summary = "texts of rows",
    .num_params = 2,
    .params = params,
    .vtable = &reward_table,
    .get_extension = of_plugin,
};
static const mortise_descriptor environment_plugin = {
    .struct_size = sizeof environment_plugin,
    .kind = MORTISE_KIND_ENVIRONMENT,
    .name = "piece",
    .summary = "a piece of the museum",
    .num_params = 1,
    .params = params,
    .vtable = &environment_table,
};
static const mortise_descriptor* const plugins[] = {&reward_plugin, &environment_plugin};
const mortise_pack PACK = {.struct_size = sizeof(mortise_pack),
                           .abi_minor = MINOR,
                           .min_host_minor = MORTISE_MIN_HOST_MINOR,
                           .num_plugins = 2,
                           .id = MORTISE_PACK_ID,
                           .version = MORTISE_PACK_VERSION,
                           .plugins = plugins,
                           .open = open_pack};
