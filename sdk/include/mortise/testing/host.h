/* A small host for an author's own tests: loads the pack, makes an instance, calls it, and keeps its reports.
 *
 * Header-only, C11 or C++17, needs only libc and libdl. It is not part of the ABI and of no pack. A test is a
 * program that gets the pack's path as its argument (mortise_add_pack_test() passes it):
 *     int main(int argc, char** argv) {
 *       mortise_test_plugin plugin = mortise_test_open(argc, argv, MORTISE_KIND_REWARD, "exact_match", NULL);
 *       ... MORTISE_CHECK(condition); ...
 *       return mortise_test_close(&plugin);
 *     }
 * reward.h, loss.h, advantage.h and rollout.h have the calls of each kind. One thread; parallel_for runs its pieces in
 * reverse order, so that a result that depends on their order shows. `mortise plugin check` tests what a real host
 * also checks (buffers, deadlines, limits).
 */
#ifndef MORTISE_TESTING_HOST_H_
#define MORTISE_TESTING_HOST_H_

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../mortise.h"

#define MORTISE_TEST_MAX_METRICS 64
#define MORTISE_TEST_MAX_SCRATCH 64

typedef struct mortise_test_metric {
  char name[96];
  double sum, weight; /* for MAX and MIN, sum is the extreme */
} mortise_test_metric;

/* The state of the one instance under test, behind the ABI's opaque pointer. */
struct mortise_call {
  const mortise_descriptor* descriptor;
  const char* const* settings; /* "key=value", null at the end; or null */
  int32_t code;                /* code of the last fail() or fail_row() */
  char error[512];             /* its text */
  int64_t num_failed_rows;
  int num_metrics, num_scratch;
  mortise_test_metric metrics[MORTISE_TEST_MAX_METRICS];
  void* scratch[MORTISE_TEST_MAX_SCRATCH];
};

typedef struct mortise_test_plugin {
  const mortise_descriptor* descriptor;
  const void* vtable; /* the kind's vtable */
  void* self;
  int32_t status; /* what create returned */
  mortise_call* call;
} mortise_test_plugin;

static inline int* mortise_test_faults(void) {
  static int count = 0;
  return &count;
}

/* Counts and prints a false condition; the test continues. */
#define MORTISE_CHECK(condition) \
  ((condition)                   \
       ? (void)0                 \
       : (void)(++*mortise_test_faults(), fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition)))

/* |a - b| <= tolerance; two NaN are near. */
static inline int mortise_test_near(double a, double b, double tolerance) {
  return (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance;
}

static inline void mortise_test_die(const char* what, const char* detail) {
  fprintf(stderr, "%s%s%s\n", what, detail[0] == 0 ? "" : ": ", detail);
  exit(1);
}

/* --- the services ------------------------------------------------------------------------------------------------ */

/* The text of a parameter: the test's setting, else the declared default; null if there is none of this type. */
static inline const char* mortise_test_setting(mortise_call* call, const char* name, int32_t type) {
  const size_t size = strlen(name);
  for (uint32_t i = 0; i < call->descriptor->num_params; ++i) {
    const mortise_param* p = call->descriptor->params[i];
    if (strcmp(p->name, name) != 0 || p->type != type) continue;
    for (const char* const* s = call->settings; s != NULL && *s != NULL; ++s) {
      if (strncmp(*s, name, size) == 0 && (*s)[size] == '=') return *s + size + 1;
    }
    return p->default_text;
  }
  return NULL;
}
static inline int32_t mortise_test_param_f64(mortise_call* call, const char* name, double* out) MORTISE_NOEXCEPT {
  const char* text = mortise_test_setting(call, name, MORTISE_PARAM_F64);
  if (text == NULL) return MORTISE_NOT_FOUND;
  *out = strcmp(text, "none") == 0 ? (double)NAN : strtod(text, NULL);
  return MORTISE_OK;
}
static inline int32_t mortise_test_param_i64(mortise_call* call, const char* name, int64_t* out) MORTISE_NOEXCEPT {
  const char* text = mortise_test_setting(call, name, MORTISE_PARAM_I64);
  if (text == NULL) return MORTISE_NOT_FOUND;
  *out = strtoll(text, NULL, 10);
  return MORTISE_OK;
}
static inline int32_t mortise_test_param_bool(mortise_call* call, const char* name, int32_t* out) MORTISE_NOEXCEPT {
  const char* text = mortise_test_setting(call, name, MORTISE_PARAM_BOOL);
  if (text == NULL) return MORTISE_NOT_FOUND;
  *out = strcmp(text, "true") == 0 ? 1 : 0;
  return MORTISE_OK;
}
static inline int32_t mortise_test_param_text(mortise_call* call, const char* name,
                                              mortise_text* out) MORTISE_NOEXCEPT {
  const char* text = mortise_test_setting(call, name, MORTISE_PARAM_TEXT);
  if (text == NULL) return MORTISE_NOT_FOUND;
  out->data = text;
  out->size = strlen(text);
  return MORTISE_OK;
}

static inline const void* mortise_test_get_extension(const char* id) MORTISE_NOEXCEPT {
  (void)id;
  return NULL;
}
static inline void mortise_test_log(mortise_call* call, int32_t level, mortise_text text) MORTISE_NOEXCEPT {
  (void)call;
  fprintf(stderr, "log %d: %.*s\n", (int)level, (int)text.size, text.data);
}
static inline void mortise_test_metric_slot(mortise_call* call, mortise_text name, double sum, double weight,
                                            int32_t reduction) MORTISE_NOEXCEPT {
  int i = 0;
  while (i < call->num_metrics &&
         (strlen(call->metrics[i].name) != name.size || memcmp(call->metrics[i].name, name.data, name.size) != 0))
    ++i;
  if (i == MORTISE_TEST_MAX_METRICS || name.size >= sizeof call->metrics[0].name) return;
  mortise_test_metric* m = &call->metrics[i];
  if (i == call->num_metrics) {
    ++call->num_metrics;
    memset(m, 0, sizeof *m);
    memcpy(m->name, name.data, name.size);
    m->sum = reduction == MORTISE_REDUCE_MAX || reduction == MORTISE_REDUCE_MIN ? sum : 0;
  }
  if (reduction == MORTISE_REDUCE_MAX) {
    m->sum = sum > m->sum ? sum : m->sum;
  } else if (reduction == MORTISE_REDUCE_MIN) {
    m->sum = sum < m->sum ? sum : m->sum;
  } else {
    m->sum += sum;
    m->weight += weight;
  }
}
static inline int32_t mortise_test_fail(mortise_call* call, int32_t code, mortise_text text) MORTISE_NOEXCEPT {
  const size_t size = text.size < sizeof call->error - 1 ? (size_t)text.size : sizeof call->error - 1;
  if (size > 0) memcpy(call->error, text.data, size);
  call->error[size] = 0;
  call->code = code;
  fprintf(stderr, "failed (status %d): %s\n", (int)code, call->error);
  return code;
}
static inline int32_t mortise_test_fail_row(mortise_call* call, int64_t row, int32_t code,
                                            mortise_text text) MORTISE_NOEXCEPT {
  fprintf(stderr, "row %lld ", (long long)row);
  ++call->num_failed_rows;
  return mortise_test_fail(call, code, text);
}
static inline int32_t mortise_test_cancelled(mortise_call* call) MORTISE_NOEXCEPT {
  (void)call;
  return 0;
}
static inline int64_t mortise_test_deadline_ns(mortise_call* call) MORTISE_NOEXCEPT {
  (void)call;
  return 0;
}
static inline void mortise_test_progress(mortise_call* call, double fraction) MORTISE_NOEXCEPT {
  (void)call;
  (void)fraction;
}
static inline void* mortise_test_alloc(mortise_call* call, uint64_t size, uint64_t align) MORTISE_NOEXCEPT {
  if (call->num_scratch == MORTISE_TEST_MAX_SCRATCH) return NULL;
  if (align < sizeof(void*)) align = sizeof(void*);
  void* memory = aligned_alloc((size_t)align, (size_t)((size + align - 1) / align * align));
  if (memory != NULL) call->scratch[call->num_scratch++] = memory;
  return memory;
}
static inline void* mortise_test_stream(mortise_call* call) MORTISE_NOEXCEPT {
  (void)call;
  return NULL;
}
static inline void mortise_test_parallel_for(mortise_call* call, int64_t n, int64_t grain,
                                             void (*fn)(void* arg, int64_t begin, int64_t end),
                                             void* arg) MORTISE_NOEXCEPT {
  (void)call;
  if (grain < 1) grain = 1;
  for (int64_t piece = (n + grain - 1) / grain; piece-- > 0;) {
    const int64_t begin = piece * grain;
    fn(arg, begin, begin + grain < n ? begin + grain : n);
  }
}
static inline void mortise_test_random_u64(mortise_call* call, uint64_t lane, uint64_t counter, uint64_t n,
                                           uint64_t* out) MORTISE_NOEXCEPT {
  (void)call;
  for (uint64_t i = 0; i < n; ++i) { /* the finaliser of splitmix64, over (lane, counter) */
    uint64_t z = lane * 0x9e3779b97f4a7c15u + (counter + i + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    out[i] = z ^ (z >> 31);
  }
}

static inline const mortise_host* mortise_test_host(void) {
  static const mortise_host table = {sizeof(mortise_host),      MORTISE_ABI_MINOR,        mortise_test_get_extension,
                                     mortise_test_log,          mortise_test_metric_slot, mortise_test_fail,
                                     mortise_test_fail_row,     mortise_test_cancelled,   mortise_test_deadline_ns,
                                     mortise_test_progress,     mortise_test_alloc,       mortise_test_stream,
                                     mortise_test_parallel_for, mortise_test_random_u64,  mortise_test_param_f64,
                                     mortise_test_param_i64,    mortise_test_param_bool,  mortise_test_param_text};
  return &table;
}

/* --- the plugin under test --------------------------------------------------------------------------------------- */

static inline const mortise_descriptor* mortise_test_find(const char* path, const char* kind, const char* name) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) mortise_test_die("cannot be loaded", dlerror());
  const mortise_pack* pack = (const mortise_pack*)dlsym(library, "mortise_pack_v1");
  if (pack == NULL) pack = (const mortise_pack*)dlsym(library, "mortise_pack_v0"); /* built for ABI 0 */
  if (pack == NULL) mortise_test_die("exports no mortise_pack_v1", path);
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor* d = pack->plugins[i];
    if (strcmp(d->kind, kind) == 0 && strcmp(d->name, name) == 0) return d;
  }
  mortise_test_die("the pack has no plugin of this kind and name", name);
  return NULL;
}

/* A misspelt setting would silently leave the default. */
static inline void mortise_test_check_settings(const mortise_descriptor* d, const char* const* settings) {
  for (const char* const* s = settings; s != NULL && *s != NULL; ++s) {
    const char* equals = strchr(*s, '=');
    uint32_t i = 0;
    while (equals != NULL && i < d->num_params &&
           (strlen(d->params[i]->name) != (size_t)(equals - *s) ||
            strncmp(d->params[i]->name, *s, (size_t)(equals - *s)) != 0))
      ++i;
    if (equals == NULL || i == d->num_params) mortise_test_die("no parameter of the plugin is set by", *s);
  }
}

/* An instance with these settings ("key=value", null at the end; null: the defaults). `status` says whether create
 * accepted them; every other fault ends the program. `settings` must outlive the plugin. */
static inline mortise_test_plugin mortise_test_open(int argc, char** argv, const char* kind, const char* name,
                                                    const char* const* settings) {
  if (argc < 2) mortise_test_die("usage: TEST PACK.so", "");
  mortise_test_plugin plugin;
  memset(&plugin, 0, sizeof plugin);
  plugin.descriptor = mortise_test_find(argv[1], kind, name);
  plugin.vtable = plugin.descriptor->vtable;
  mortise_test_check_settings(plugin.descriptor, settings);
  plugin.call = (mortise_call*)calloc(1, sizeof(mortise_call));
  if (plugin.call == NULL || plugin.vtable == NULL) mortise_test_die("no memory, or no vtable", name);
  plugin.call->descriptor = plugin.descriptor;
  plugin.call->settings = settings;
  /* Every vtable begins with the same slots. */
  plugin.status = ((const mortise_reward_vtable*)plugin.vtable)->create(mortise_test_host(), plugin.call, &plugin.self);
  if (plugin.status != MORTISE_OK) plugin.self = NULL;
  return plugin;
}

/* The instance, for a call. */
static inline void* mortise_test_self(const mortise_test_plugin* plugin) {
  if (plugin->status != MORTISE_OK) mortise_test_die("create failed, so nothing can be called", plugin->call->error);
  return plugin->self;
}

/* The weighted mean of a MEAN metric, the sum or extreme of the others; NaN if it was not reported. */
static inline double mortise_test_metric_value(const mortise_test_plugin* plugin, const char* name) {
  for (int i = 0; i < plugin->call->num_metrics; ++i) {
    const mortise_test_metric* m = &plugin->call->metrics[i];
    if (strcmp(m->name, name) == 0) return m->weight != 0 ? m->sum / m->weight : m->sum;
  }
  return (double)NAN;
}

/* Scratch memory lives until its call ends. */
static inline void mortise_test_end_call(mortise_test_plugin* plugin) {
  for (int i = 0; i < plugin->call->num_scratch; ++i) free(plugin->call->scratch[i]);
  plugin->call->num_scratch = 0;
}

/* Forgets what earlier calls reported. */
static inline void mortise_test_clear(mortise_test_plugin* plugin) {
  mortise_call* call = plugin->call;
  mortise_test_end_call(plugin);
  call->num_metrics = 0;
  call->num_failed_rows = 0;
  call->code = 0;
  call->error[0] = 0;
}

/* Destroys the instance. Returns the program's exit status: 1 if a check failed. */
static inline int mortise_test_close(mortise_test_plugin* plugin) {
  if (plugin->self != NULL) ((const mortise_reward_vtable*)plugin->vtable)->destroy(plugin->self);
  mortise_test_clear(plugin);
  free(plugin->call);
  memset(plugin, 0, sizeof *plugin);
  if (*mortise_test_faults() > 0) fprintf(stderr, "%d checks failed\n", *mortise_test_faults());
  return *mortise_test_faults() > 0 ? 1 : 0;
}

/* --- views ------------------------------------------------------------------------------------------------------- */

/* A one-dimensional tensor over borrowed memory. Fill it with mortise_test_f32() or mortise_test_u8(). */
typedef struct mortise_test_view {
  int64_t shape[1], strides[1];
  mortise_tensor tensor;
} mortise_test_view;

static inline const mortise_tensor* mortise_test_view_of(mortise_test_view* view, const void* data, int64_t n,
                                                         uint8_t code, uint8_t bits) {
  memset(view, 0, sizeof *view);
  view->shape[0] = n;
  view->strides[0] = 1;
  view->tensor.data = (void*)(uintptr_t)data;
  view->tensor.device_type = MORTISE_CPU;
  view->tensor.ndim = 1;
  view->tensor.dtype_code = code;
  view->tensor.dtype_bits = bits;
  view->tensor.dtype_lanes = 1;
  view->tensor.shape = view->shape;
  view->tensor.strides = view->strides;
  return &view->tensor;
}
/* Null for null, an input that is not given. */
static inline const mortise_tensor* mortise_test_f32(mortise_test_view* view, const float* data, int64_t n) {
  return data == NULL ? NULL : mortise_test_view_of(view, data, n, MORTISE_FLOAT, 32);
}
static inline const mortise_tensor* mortise_test_u8(mortise_test_view* view, const uint8_t* data, int64_t n) {
  return data == NULL ? NULL : mortise_test_view_of(view, data, n, MORTISE_UINT, 8);
}

#endif /* MORTISE_TESTING_HOST_H_ */
