/* A pack with one plugin "hostile" of every kind, which all commit the same misdeed. hostile_test.cpp builds it once per
 * misdeed, with -DMISDEED="name" and, where the misdeed is one of the file or its tables, with other definitions.
 *
 * Parameters: at_step, before which the plugin behaves, and bad_only, with which a reward misbehaves at completions that
 * begin with "bad" alone. The note is written by hand, so that it can lie.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include "mortise/ext/state.h"
#include "mortise/mortise.h"

#ifndef NOTE_ABI
#define NOTE_ABI "1"
#endif
#ifndef NOTE_MIN_HOST
#define NOTE_MIN_HOST "1"
#endif
#ifndef KIND_MAJOR
#define KIND_MAJOR "1"
#endif
#ifndef NOTE_DEFAULT
#define NOTE_DEFAULT "0"
#endif
#ifndef NOTE_NAME
#define NOTE_NAME "hostile"
#endif
#ifndef SECOND_PARAM
#define SECOND_PARAM "bad_only"
#endif
#ifndef PARAM_MAX
#define PARAM_MAX 1e6
#endif
#ifndef VTABLE_SIZE
#define VTABLE_SIZE(type) sizeof(type)
#endif
#ifndef DESCRIPTOR_SIZE
#define DESCRIPTOR_SIZE sizeof(mortise_descriptor)
#endif
#ifndef PACK_SIZE
#define PACK_SIZE sizeof(mortise_pack)
#endif
#ifndef CREATE
#define CREATE create
#endif
#ifndef MAIN_SLOT
#define MAIN_SLOT(slot) slot
#endif

#define NOTE_PARAMS                                                     \
  "[{\"name\":\"at_step\",\"type\":\"i64\",\"default\":\"" NOTE_DEFAULT \
  "\",\"min\":0,\"max\":1000000,"                                       \
  "\"doc\":\"behaves before\"},{\"name\":\"" SECOND_PARAM               \
  "\",\"type\":\"bool\",\"default\":\"false\","                         \
  "\"doc\":\"only at bad completions\"}]"
#define NOTE_PLUGIN(kind)                                               \
  "{\"kind\":\"mortise." kind "/" KIND_MAJOR "\",\"name\":\"" NOTE_NAME \
  "\",\"summary\":\"misbehaves\","                                      \
  "\"doc\":null,\"flags\":0,\"coupling\":\"token\",\"requires\":[],\"consumes\":[],\"params\":" NOTE_PARAMS "}"
#ifdef TWINS
#define NOTE_TWIN NOTE_PLUGIN("policy_loss") ","
#else
#define NOTE_TWIN ""
#endif
#define NOTE                                                                                                             \
  "{\"abi\":" NOTE_ABI ",\"abi_minor\":1,\"min_host_minor\":" NOTE_MIN_HOST                                              \
  ",\"pack\":{\"id\":\"test.hostile\","                                                                                  \
  "\"version\":\"1.0.0\"},\"plugins\":[" NOTE_TWIN                                                                       \
      NOTE_PLUGIN("policy_loss") "," NOTE_PLUGIN("kl_estimator") "," NOTE_PLUGIN("advantage_estimator") "," NOTE_PLUGIN( \
          "reward") "," NOTE_PLUGIN("rollout_backend") "],\"needs\":[],\"build\":{}}"
#ifndef WITHOUT_NOTE
__attribute__((section(".note.mortise"), used, aligned(4))) static const struct {
  uint32_t name_size, text_size, type;
  char name[8];
  char text[(sizeof(NOTE) + 3) / 4 * 4];
} note = {8, sizeof(NOTE) - 1, 1, "Mortise", NOTE};
#endif

/* Shows that code of this pack ran. */
__attribute__((constructor)) static void leave_mark(void) {
  const char* path = getenv("MORTISE_TEST_MARK");
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT, 0600);
  if (fd >= 0) close(fd);
}

#ifdef UNDEFINED
int nobody_has_this(void);
int use_undefined(void) { return nobody_has_this(); }
#endif
#ifdef EXTRA_EXPORT
__attribute__((visibility("default"))) int leaked_helper(void) { return 1; }
#endif

typedef struct request {
  int64_t id, samples, step;
} request;
typedef struct instance {
  const mortise_host* host;
  int64_t at_step, calls;
  int32_t bad_only;
  int64_t version;
  request requests[256];
  int64_t num_requests;
} instance;

static int is(const char* name) { return strcmp(MISDEED, name) == 0; }

static void* read_on(void* stream) {
  getc(stream); /* for ever: nobody writes */
  return NULL;
}

/* At the end of the process, after all calls: run_test.cpp has these packs checked. */
__attribute__((destructor)) static void at_the_end(void) {
  if (is("abort_at_the_end")) abort();
  if (is("reads_at_the_end")) {
    int ends[2];
    pthread_t thread;
    if (pipe(ends) != 0) abort();
    FILE* stream = fdopen(ends[0], "r");
    if (stream == NULL || pthread_create(&thread, NULL, read_on, stream) != 0) abort();
    while (ftrylockfile(stream) == 0) { /* until the thread holds it */
      funlockfile(stream);
      usleep(1000);
    }
  }
}

/* --- misdeeds that need no outputs ------------------------------------------------------------------------------ */
static jmp_buf place;
static void* volatile sink;

__attribute__((noinline)) static void remember_place(void) {
  sink = alloca(1 << 16);         /* far below every later frame */
  if (setjmp(place) != 0) return; /* into a frame that is gone */
}
__attribute__((noinline)) static void jump(void) {
  memset(alloca(1 << 18), 0, 1 << 18);
  longjmp(place, 1);
}
__attribute__((noinline)) static int64_t recurse(int64_t n) {
  volatile char frame[4096];
  frame[n % 4096] = (char)n;
  return recurse(n + 1) + frame[0];
}
static void* stay(void* argument) {
  while (1) sleep(1);
  return argument;
}
static void on_signal(int number) { (void)number; }

/* How long a call that never returns lives, by its own count: a byte in the file MISDEED.ticks.KIND.PROCESS for each nap
 * of 10 ms, or for each 10 ms of CPU time. A busy machine makes the count smaller and never larger. */
static const char* kind = ""; /* kind of the slot that was called last */
static void never_return(int computes) {
  char path[4096];
  snprintf(path, sizeof path, TICKS ".%s.%d", kind, (int)getpid());
  const int ticks = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct timespec now, last = {0, 0};
  for (volatile unsigned i = 0; 1; i = i + 1) {
    if (computes) {
      if (i % 65536 != 0) continue;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      if ((now.tv_sec - last.tv_sec) * 1000000000L + now.tv_nsec - last.tv_nsec < 10000000L) continue;
      last = now;
    } else {
      usleep(10000);
    }
    if (ticks >= 0 && write(ticks, ".", 1) != 1) abort(); /* a worker may find all files read-only */
  }
}
static struct _Unwind_Exception foreign;

static int32_t misbehave(instance* self, mortise_call* call) {
  static char garbage[8192];
  memset(garbage, 0xFF, sizeof garbage);
  memcpy(garbage, "\x1b[2Jerror: all is well\r", 23);
  if (is("crash")) *(volatile int*)8 = 1;
  if (is("abort")) abort();
  if (is("exit")) exit(0);
  if (is("exit_at_once")) _exit(0);
  if (is("quick_exit")) quick_exit(0);
  if (is("stack_overflow")) return (int32_t)recurse(0);
  if (is("endless_loop") || is("hang")) never_return(is("endless_loop"));
  if (is("slow")) usleep(2010000);
  if (is("throw")) _Unwind_RaiseException(&foreign);
  if (is("longjmp")) jump();
  if (is("unknown_status")) return 12345;
  if (is("garbage_text")) return self->host->fail(call, MORTISE_INTERNAL, (mortise_text){garbage, sizeof garbage});
  if (is("endless_text")) {
    memset(garbage, 'x', sizeof garbage);
    return self->host->fail(call, MORTISE_INTERNAL, (mortise_text){garbage, UINT64_C(1) << 62});
  }
  if (is("bad_metric")) self->host->metric(call, (mortise_text){garbage, 40}, 1, 1, 77);
  if (is("no_such_row")) self->host->fail_row(call, 1 << 20, MORTISE_INTERNAL, (mortise_text){"x", 1});
  if (is("fails_yet_ok")) self->host->fail(call, MORTISE_ABORTED, (mortise_text){"half done", 9});
  if (is("signal_action")) signal(SIGTERM, on_signal);
  if (is("signal_mask")) {
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
  }
  if (is("locale")) setlocale(LC_ALL, "C.UTF-8");
  if (is("folder") && chdir("/") != 0) abort();
  if (is("rounding")) fesetround(FE_UPWARD);
  if (is("descriptors")) close_range(3, ~0u, 0);
  if (is("memory")) {
    volatile char* block = NULL;
    do block = malloc(64 << 20);
    while (block != NULL);
    *block = 1; /* and does not look whether there was any */
  }
  if (is("thread")) {
    pthread_t thread;
    pthread_create(&thread, NULL, stay, NULL);
  }
  return MORTISE_OK;
}

static int64_t num_spoilt(int64_t n) { return n < 2 ? n : 2; }
static void spoil(float* out, const mortise_tensor* view, int64_t n) {
  if (out == NULL) return;
  if (is("nan")) out[num_spoilt(n) - 1] = NAN;
  if (is("infinite")) out[num_spoilt(n) - 1] = -INFINITY;
  if (is("write_past")) memset(out + n, 0x42, 64);
  if (is("write_before")) memset(out - 16, 0x42, 64);
  if (is("shape")) {
    view->shape[0] = INT64_C(1) << 40;
    view->strides[0] = -7;
  }
}

/* --- slots ------------------------------------------------------------------------------------------------------- */
static int32_t create(const mortise_host* host, mortise_call* call, void** self) {
  instance* made = calloc(1, sizeof(instance));
  if (made == NULL) return MORTISE_RESOURCE_EXHAUSTED;
  made->host = host;
  host->param_i64(call, "at_step", &made->at_step);
  host->param_bool(call, "bad_only", &made->bad_only);
  if (is("longjmp")) remember_place();
  *self = made;
  return MORTISE_OK;
}
static void destroy(void* self) {
  if (is("crash_in_destroy")) *(volatile int*)8 = 1;
  free(self);
}

/* Both outputs get 0.5 at every token; what the plugins compute is not what the tests are about. */
static int32_t fill(void* given, mortise_call* call, const mortise_layout* layout, int64_t step,
                    const mortise_tensor* first, const mortise_tensor* second) {
  instance* self = given;
  const int64_t n = layout->num_tokens;
  float* const outputs[] = {mortise_tensor_data(first), mortise_tensor_data(second)};
  ++self->calls;
  for (int k = 0; k < 2; ++k) {
    for (int64_t t = 0; outputs[k] != NULL && t < n; ++t) outputs[k][t] = 0.5f;
  }
  if ((step > 0 ? step : self->calls) < self->at_step || n == 0) return MORTISE_OK;
  spoil(outputs[0], first, n);
  return misbehave(self, call);
}
static int32_t policy_loss(void* self, mortise_call* call, const mortise_policy_loss_in* in,
                           mortise_policy_loss_out* out) {
  kind = "policy_loss";
  return fill(self, call, in->layout, in->step, out->loss, out->grad_log_prob);
}
/* Its struct has no step: drive.cpp gives log-probs of minus the step, so that a new process knows it too. */
static int32_t kl_estimator(void* self, mortise_call* call, const mortise_kl_estimator_in* in,
                            mortise_kl_estimator_out* out) {
  const float* const log_prob = mortise_tensor_data(in->log_prob);
  const int64_t step = in->layout->num_tokens > 0 ? (int64_t)-log_prob[0] : 0;
  kind = "kl_estimator";
  return fill(self, call, in->layout, step, out->kl, out->grad_log_prob);
}
static int32_t advantage_estimator(void* self, mortise_call* call, const mortise_advantage_estimator_in* in,
                                   mortise_advantage_estimator_out* out) {
  kind = "advantage_estimator";
  return fill(self, call, in->layout, in->step, out->advantages, out->returns);
}
static int is_bad(const mortise_reward_in* in, int64_t row) {
  const uint64_t begin = in->completion.offsets[row], end = in->completion.offsets[row + 1];
  return end - begin >= 3 && memcmp(in->completion.bytes + begin, "bad", 3) == 0;
}
static int32_t score(void* given, mortise_call* call, const mortise_reward_in* in, mortise_reward_out* out) {
  instance* self = given;
  kind = "reward";
  int misbehaves = in->num_rows > 0 && in->step >= self->at_step;
  for (int64_t row = 0; row < in->num_rows; ++row) out->rewards[row] = 1;
  if (self->bad_only) {
    misbehaves = 0;
    for (int64_t row = 0; row < in->num_rows; ++row) misbehaves |= is_bad(in, row);
  }
  if (!misbehaves) return MORTISE_OK;
  if (is("nan")) out->rewards[0] = NAN;
  if (is("infinite")) out->rewards[0] = INFINITY;
  if (is("write_past")) memset(out->rewards + in->num_rows, 0x42, 64);
  if (is("write_before")) memset(out->rewards - 8, 0x42, 64);
  if (is("shape")) out->row_value(out->sink, in->num_rows + 5, (mortise_text){"x", 1}, 1);
  return misbehave(self, call);
}

static int32_t set_version(void* self, mortise_call* call, int64_t version) {
  (void)call;
  ((instance*)self)->version = version;
  return MORTISE_OK;
}
static int32_t submit(void* given, mortise_call* call, const mortise_rollout_request* const* requests, uint64_t num,
                      uint64_t* accepted) {
  instance* self = given;
  (void)call;
  uint64_t taken = 0;
  for (; taken < num && self->num_requests < 256; ++taken) {
    const mortise_rollout_request* r = requests[taken];
    self->requests[self->num_requests++] = (request){r->request_id, r->num_samples, r->step};
  }
  const int lies = is("write_past") && num > 0 && requests[0]->step >= self->at_step;
  *accepted = lies ? taken + 5 : taken; /* more than there were */
  return MORTISE_OK;
}
static int32_t deliver(instance* self, const request* r, int64_t sample, int bad, const mortise_rollout_sink* to) {
  int64_t ids[] = {3, 4};
  float log_prob[] = {-1, -2};
  mortise_rollout_sequence sequence = {.struct_size = sizeof sequence,
                                       .finish_reason = MORTISE_FINISH_LENGTH,
                                       .request_id = r->id,
                                       .sample_index = sample,
                                       .weight_version = self->version,
                                       .num_ids = 2,
                                       .ids = ids,
                                       .log_prob = log_prob};
  if (bad && is("nan")) log_prob[1] = NAN;
  if (bad && is("infinite")) log_prob[0] = -INFINITY;
  if (bad && is("shape")) sequence.num_ids = INT64_C(1) << 40; /* it has two */
  if (bad && is("write_before")) ids[0] = -1;
  return to->sequence(to->context, &sequence);
}
static int32_t poll(void* given, mortise_call* call, const mortise_rollout_sink* to, int64_t timeout_ns,
                    uint64_t* outstanding) {
  instance* self = given;
  kind = "rollout_backend";
  (void)timeout_ns;
  *outstanding = 0;
  int bad = 0;
  for (int64_t i = 0; i < self->num_requests; ++i) bad |= self->requests[i].step >= self->at_step;
  const int64_t num = self->num_requests;
  self->num_requests = 0;
  const int32_t status = bad ? misbehave(self, call) : MORTISE_OK;
  for (int64_t i = 0; i < num && status == MORTISE_OK; ++i) {
    for (int64_t s = 0; s < self->requests[i].samples; ++s) deliver(self, &self->requests[i], s, bad, to);
  }
  return status;
}

static int32_t save(void* self, mortise_call* call, const mortise_state_sink* to) {
  (void)self;
  (void)call;
  to->write(to->context, (mortise_bytes){MISDEED, UINT64_C(1) << 62});
  return MORTISE_OK;
}
static const mortise_state state = {.struct_size = sizeof state, .save = save};
static const void* get_extension(void* self, const char* id) {
  (void)self;
  return is("huge_state") && strcmp(id, MORTISE_EXT_STATE) == 0 ? &state : NULL;
}

/* --- tables ------------------------------------------------------------------------------------------------------ */
#define HEAD(kind)                                                                           \
  .struct_size = VTABLE_SIZE(mortise_##kind##_vtable), .create = CREATE, .destroy = destroy, \
  .get_extension = get_extension
static const mortise_policy_loss_vtable policy_loss_table = {HEAD(policy_loss), .compute = MAIN_SLOT(policy_loss)};
static const mortise_kl_estimator_vtable kl_table = {HEAD(kl_estimator), .compute = MAIN_SLOT(kl_estimator)};
static const mortise_advantage_estimator_vtable advantage_table = {HEAD(advantage_estimator),
                                                                   .compute = MAIN_SLOT(advantage_estimator)};
static const mortise_reward_vtable reward_table = {HEAD(reward), .score = MAIN_SLOT(score)};
static const mortise_rollout_backend_vtable rollout_table = {HEAD(rollout_backend), .set_version = set_version,
                                                             .submit = submit, .poll = MAIN_SLOT(poll)};

static const mortise_param at_step = {.struct_size = sizeof(mortise_param),
                                      .type = MORTISE_PARAM_I64,
                                      .name = "at_step",
                                      .default_text = NOTE_DEFAULT,
                                      .doc = "behaves before",
                                      .min = 0,
                                      .max = PARAM_MAX,
                                      .has_range = 1};
static const mortise_param bad_only = {.struct_size = sizeof(mortise_param),
                                       .type = MORTISE_PARAM_BOOL,
                                       .name = SECOND_PARAM,
                                       .default_text = "false",
                                       .doc = "only at bad completions"};
static const mortise_param* const params[] = {&at_step, &bad_only};

#ifdef NO_ZERO /* a summary without an end */
static const char unended[10] = {'m', 'i', 's', 'b', 'e', 'h', 'a', 'v', 'e', 's'};
#define SUMMARY unended
#else
#define SUMMARY "misbehaves"
#endif
#define PLUGIN(kind_name, table)                                                                    \
  {                                                                                                 \
    .struct_size = DESCRIPTOR_SIZE, .kind = "mortise." kind_name "/" KIND_MAJOR, .name = NOTE_NAME, \
    .summary = SUMMARY, .num_params = 2, .params = params, .vtable = &(table)                       \
  }
static const mortise_descriptor all[] = {PLUGIN("policy_loss", policy_loss_table), PLUGIN("kl_estimator", kl_table),
                                         PLUGIN("advantage_estimator", advantage_table), PLUGIN("reward", reward_table),
                                         PLUGIN("rollout_backend", rollout_table)};
static const mortise_descriptor* const plugins[] = {&all[0], &all[1], &all[2], &all[3], &all[4]};

static int32_t open_pack(const mortise_host* host) {
  (void)host;
  if (is("crash_in_open")) *(volatile int*)8 = 1;
  return is("open_fails") ? MORTISE_FAILED_PRECONDITION : MORTISE_OK;
}

const mortise_pack mortise_pack_v1 = {.struct_size = PACK_SIZE,
                                      .abi_minor = 1,
                                      .min_host_minor = 1,
                                      .num_plugins = 5,
                                      .id = "test.hostile",
                                      .version = "1.0.0",
                                      .plugins = plugins,
                                      .open = open_pack};
