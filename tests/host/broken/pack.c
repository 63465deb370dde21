/* Packs whose fault is in the file or in loading it, one compile definition each; the others are in tests/host/packs.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "mortise/mortise.h"

#ifndef SUMMARY
#define SUMMARY "one for every row"
#endif
#ifndef REQUIRES
#define REQUIRES ""
#endif
#ifndef BUILD
#define BUILD ""
#endif
#ifndef THREADS
#define THREADS 0
#endif
#ifndef VTABLE_SIZE
#define VTABLE_SIZE sizeof(mortise_kl_estimator_vtable)
#endif

#define NOTE                                                                                                      \
  "{\"abi\":1,\"abi_minor\":0,\"min_host_minor\":0,\"pack\":{\"id\":\"test.broken_file\",\"version\":\"1.0.0\"}," \
  "\"plugins\":[{\"kind\":\"mortise.kl_estimator/1\",\"name\":\"one\",\"summary\":\"" SUMMARY                     \
  "\",\"doc\":null,"                                                                                              \
  "\"flags\":0,\"coupling\":\"token\",\"requires\":[" REQUIRES                                                    \
  "],\"consumes\":[],\"params\":[]}],\"needs\":[],"                                                               \
  "\"build\":{" BUILD "}}"
__attribute__((section(".note.mortise"), used, aligned(4))) static const struct {
  uint32_t name_size, text_size, type;
  char name[8];
  char text[(sizeof(NOTE) + 3) / 4 * 4];
} note = {8, sizeof(NOTE) - 1, 1, "Mortise", NOTE};

#ifdef CHANGES_FOLDER
__attribute__((constructor)) static void change_folder(void) {
  if (chdir("/") != 0) abort();
}
#endif
#ifdef SLOW
__attribute__((constructor)) static void take_time(void) { usleep(1300000); }
#endif
#ifdef TEXT_RELOCATION
/* The address of something, in the code. */
__asm__(".text\n.balign 8\n.quad mortise_pack_v1\n");
#endif

/* The first THREADS instances leave a thread behind each. */
static void* stay(void* argument) {
  sleep(100);
  return argument;
}
static int32_t create(const mortise_host* host, mortise_call* call, void** self) {
  static int num_threads = 0;
  (void)host;
  (void)call;
  pthread_t thread;
  if (num_threads < THREADS && pthread_create(&thread, NULL, stay, NULL) == 0) ++num_threads;
  *self = NULL;
  return MORTISE_OK;
}
static void destroy(void* self) { (void)self; }
static int32_t compute(void* self, mortise_call* call, const mortise_kl_estimator_in* in,
                       mortise_kl_estimator_out* out) {
  (void)self;
  (void)call;
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) ((float*)mortise_tensor_data(out->kl))[t] = 1;
  return MORTISE_OK;
}

static const mortise_kl_estimator_vtable vtable = {
    .struct_size = VTABLE_SIZE, .create = create, .destroy = destroy, .compute = compute};
#ifdef REQUIRES_NAME
static const char* const requires_inputs[] = {REQUIRES_NAME, NULL};
#else
static const char* const requires_inputs[] = {NULL};
#endif
static const mortise_descriptor descriptor = {.struct_size = sizeof(mortise_descriptor),
                                              .kind = MORTISE_KIND_KL_ESTIMATOR,
                                              .name = "one",
                                              .summary = SUMMARY,
                                              .requires_inputs = requires_inputs,
                                              .vtable = &vtable};
static const mortise_descriptor* const plugins[] = {&descriptor};

#ifdef SINGLE
/* Refuses a second copy of itself in the process. */
static int32_t open_pack(const mortise_host* host) {
  (void)host;
  if (getenv("BROKEN_PACK_IS_OPEN") != NULL) return MORTISE_ALREADY_EXISTS;
  return setenv("BROKEN_PACK_IS_OPEN", "1", 1) == 0 ? MORTISE_OK : MORTISE_INTERNAL;
}
#else
#define open_pack NULL
#endif

const mortise_pack mortise_pack_v1 = {.struct_size = sizeof(mortise_pack),
                                      .abi_minor = MORTISE_ABI_MINOR,
                                      .min_host_minor = 1,
                                      .num_plugins = 1,
                                      .id = "test.broken_file",
                                      .version = "1.0.0",
                                      .plugins = plugins,
                                      .open = open_pack};
