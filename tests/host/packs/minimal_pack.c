/* The smallest pack, in plain C, built many times with one thing wrong each (packs.cmake): a reward named PLUGIN_NAME
 * that gives every row 1. Its note is written by hand, so that it can be wrong, double or missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mortise/mortise.h"

#ifndef PACK_ID
#define PACK_ID "test.minimal"
#endif
#ifndef PACK_VERSION
#define PACK_VERSION "1.0.0"
#endif
#ifndef NOTE_VERSION
#define NOTE_VERSION PACK_VERSION
#endif
#ifndef PLUGIN_NAME
#define PLUGIN_NAME "one"
#endif
#ifndef NOTE_ABI
#define NOTE_ABI "1"
#endif
#ifndef NOTE_MIN_HOST
#define NOTE_MIN_HOST "1"
#endif
#ifndef NOTE_PARAM_MAX
#define NOTE_PARAM_MAX "2"
#endif
#ifndef FLAGS
#define FLAGS 0
#endif
#define QUOTED(x) #x
#define TEXT_OF(x) QUOTED(x)
/* A second parameter, of minor 2. Where the role is one of a later minor, the note has a word for it too. */
#ifdef ROLE
#ifndef ROLE_DEFAULT
#define ROLE_DEFAULT "answer"
#endif
#define NOTE_ROLE_PARAM                                                                               \
  ",{\"name\":\"with_role\",\"type\":\"text\",\"default\":\"" ROLE_DEFAULT "\",\"role\":\"" NOTE_ROLE \
  "\",\"doc\":"                                                                                       \
  "\"has a meaning\"}"
#else
#define NOTE_ROLE_PARAM ""
#endif
#ifndef ABI_MINOR
#define ABI_MINOR MORTISE_TARGET_MINOR
#endif
#ifndef TABLE_MINOR
#define TABLE_MINOR ABI_MINOR
#endif
#ifndef KIND
#define KIND MORTISE_KIND_REWARD
#define NOTE_KIND "mortise.reward/1"
#else
#define NOTE_KIND KIND
#endif
#ifndef NOTE_BUILD
#define NOTE_BUILD "{}"
#endif

/* The note of a major that nobody here knows. Only its "abi" has a form that is known. */
#define NEXT_NOTE "{\"abi\":2,\"plugins\":\"elsewhere\"}"
#define NOTE \
  "{\"abi\":" NOTE_ABI ",\"abi_minor\":" TEXT_OF(ABI_MINOR) ",\"min_host_minor\":" NOTE_MIN_HOST ",\"pack\":{\"id\":\"" PACK_ID  \
  "\",\"version\":\"" NOTE_VERSION "\"},\"plugins\":[{\"kind\":\"" NOTE_KIND "\",\"name\":\"" PLUGIN_NAME   \
  "\",\"summary\":\"one\",\"doc\":null,\"flags\":" TEXT_OF(FLAGS) ",\"coupling\":\"token\",\"requires\":[],\"consumes\":[]," \
  "\"params\":[{\"name\":\"factor\",\"type\":\"f64\",\"default\":\"1.0\",\"min\":0,\"max\":" NOTE_PARAM_MAX \
  ",\"doc\":\"what every row gets\"}" NOTE_ROLE_PARAM "]}],\"needs\":[],\"build\":" NOTE_BUILD "}"

#define MAKE_NOTE(variable, TEXT)                                                   \
  __attribute__((section(".note.mortise"), used, aligned(4))) static const struct { \
    uint32_t name_size, text_size, type;                                            \
    char name[8];                                                                   \
    char text[(sizeof(TEXT) - 1 + 3) / 4 * 4];                                      \
  } variable = {8, sizeof(TEXT) - 1, 1, "Mortise", TEXT}

#ifdef NEXT_MAJOR
MAKE_NOTE(next_note, NEXT_NOTE);
__attribute__((visibility("default"))) const int mortise_pack_v2 = 2;
#endif
#ifndef WITHOUT_NOTE
MAKE_NOTE(first_note, NOTE);
#endif
#ifdef SECOND_NOTE
MAKE_NOTE(second_note, NOTE);
#endif

#ifdef CONSTRUCTOR
/* Leaves a mark when any code of this pack runs. */
__attribute__((constructor)) static void leave_mark(void) {
  const char* path = getenv("MORTISE_TEST_MARK");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file != NULL) fclose(file);
}
#endif

#ifdef WITH_TLS
static __thread int num_calls = 1;
#endif

typedef struct instance {
  double factor;
} instance;

static int32_t create(const mortise_host* host, mortise_call* call, void** self) {
  instance* made = malloc(sizeof(instance));
  if (made == NULL) return MORTISE_RESOURCE_EXHAUSTED;
  const int32_t code = host->param_f64(call, "factor", &made->factor);
  if (code != MORTISE_OK) return code;
#ifdef WITH_TLS
  ++num_calls;
#endif
  *self = made;
  return MORTISE_OK;
}

static int32_t score(void* self, mortise_call* call, const mortise_reward_in* in, mortise_reward_out* out) {
  (void)call;
  for (int64_t i = 0; i < in->num_rows; ++i) out->rewards[i] = ((instance*)self)->factor;
  return MORTISE_OK;
}

static const mortise_reward_vtable vtable = {
    .struct_size = sizeof(mortise_reward_vtable), .create = create, .destroy = free, .score = score};

static const mortise_param factor = {.struct_size = sizeof(mortise_param),
                                     .type = MORTISE_PARAM_F64,
                                     .name = "factor",
                                     .default_text = "1.0",
                                     .doc = "what every row gets",
                                     .min = 0,
                                     .max = 2,
                                     .has_range = 1};
#ifdef ROLE
static const mortise_param with_role = {.struct_size = sizeof(mortise_param),
                                        .type = MORTISE_PARAM_TEXT,
                                        .name = "with_role",
                                        .default_text = ROLE_DEFAULT,
                                        .doc = "has a meaning",
                                        .role = ROLE};
static const mortise_param* const params[] = {&factor, &with_role};
#else
static const mortise_param* const params[] = {&factor};
#endif

#ifdef DEVICES
/* Where its tensors may lie. */
static const int32_t device_types[] = {DEVICES};
static const mortise_device device_table = {.struct_size = sizeof(mortise_device),
                                            .num_device_types = sizeof device_types / sizeof *device_types,
                                            .device_types = device_types};
static const void* extension_of(const char* id) { return strcmp(id, MORTISE_EXT_DEVICE) == 0 ? &device_table : NULL; }
#endif
#ifdef TELLS
/* Two files and a column, which the parameter TELLS leads to; with factor 2 it may not look. */
static mortise_text text_of(const char* s) { return (mortise_text){s, strlen(s)}; }
static int32_t tell(const mortise_host* host, mortise_call* call, const mortise_reads_sink* sink) {
  const mortise_text files[] = {{"b.txt", 5}, {"a.txt", 5}};
  const mortise_file_set set = {.struct_size = sizeof set,
                                .param = text_of(TELLS),
                                .name = text_of("tables"),
                                .what = text_of("tables of the factor"),
                                .folder = text_of("/folder"),
                                .num_files = 2,
                                .files = files};
  const mortise_needed_column column = {.struct_size = sizeof column,
                                        .param = text_of(TELLS),
                                        .name = text_of("level"),
                                        .who = text_of("the factor"),
                                        .next = text_of("Take another factor")};
  double given = 0;
  if (host->param_f64(call, "factor", &given) != MORTISE_OK) return MORTISE_INTERNAL;
  if (given == 2) return host->fail(call, MORTISE_PERMISSION_DENIED, text_of("/folder: not for you"));
  sink->files(sink->context, &set);
  sink->column(sink->context, &column);
  return MORTISE_OK;
}
static const mortise_reads reads = {.struct_size = sizeof reads, .tell = tell};
static const void* extension_of(const char* id) { return strcmp(id, MORTISE_EXT_READS) == 0 ? &reads : NULL; }
#endif

static const mortise_descriptor descriptor = {.struct_size = sizeof(mortise_descriptor),
                                              .flags = FLAGS,
#if defined(TELLS) || defined(DEVICES)
                                              .get_extension = extension_of,
#endif
                                              .kind = KIND,
                                              .name = PLUGIN_NAME,
                                              .summary = "one",
                                              .num_params = sizeof params / sizeof params[0],
                                              .params = params,
                                              .vtable = &vtable};
static const mortise_descriptor* const plugins[] = {&descriptor};

#ifdef OPEN_REFUSES
static int32_t open_pack(const mortise_host* host) {
  const char why[] = "the moon is not full";
  host->log(NULL, MORTISE_LOG_ERROR, (mortise_text){why, sizeof why - 1});
  return MORTISE_FAILED_PRECONDITION;
}
#elif defined(OPEN_THROWS)
int32_t throwing_open(const mortise_host* host);
#define open_pack throwing_open
#elif defined(SEES_MINOR)
/* What the host shows from the first call on: its minor, and the texts of rows. */
static int32_t open_pack(const mortise_host* host) {
  return host->abi_minor == SEES_MINOR && host->get_extension(SEES_EXTENSION) != NULL ? MORTISE_OK : MORTISE_INTERNAL;
}
#else
#define open_pack NULL
#endif

#ifdef WITHOUT_SYMBOL
__attribute__((visibility("default"))) const mortise_pack some_other_name = {
#else
#ifndef PACK_SYMBOL
#define PACK_SYMBOL mortise_pack_v1
#endif
const mortise_pack PACK_SYMBOL = {
#endif
    .struct_size = sizeof(mortise_pack),
    .abi_minor = TABLE_MINOR,
    .min_host_minor = 1,
    .num_plugins = 1,
    .id = PACK_ID,
    .version = PACK_VERSION,
    .plugins = plugins,
    .open = open_pack};

#ifdef BOTH_SYMBOLS /* the one of ABI 0 has no plugins, and no host that knows ABI 1 looks at it */
const mortise_pack mortise_pack_v0 = {.struct_size = sizeof(mortise_pack), .id = "test.nobody", .version = "0.0.0"};
#endif
#ifdef EXTRA_EXPORT
__attribute__((visibility("default"))) int leaked_helper(void) { return 1; }
__attribute__((visibility("default"))) int leaked_state = 2;
#endif

#ifdef CALLS_OTHER
int other_library(void);
int use_other(void) { return other_library(); }
#endif
