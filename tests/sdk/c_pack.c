/* A pack in plain C11 over the ABI headers alone: a reward that is the number of bytes of the completion. */
#include <mortise/mortise.h>

static int32_t create(const mortise_host* host, mortise_call* call, void** self) {
  (void)call;
  *self = (void*)(uintptr_t)host;
  return MORTISE_OK;
}
static void destroy(void* self) { (void)self; }
static int32_t score(void* self, mortise_call* call, const mortise_reward_in* in, mortise_reward_out* out) {
  (void)self;
  (void)call;
  for (int64_t i = 0; i < in->num_rows; ++i) {
    out->rewards[i] = (double)(in->completion.offsets[i + 1] - in->completion.offsets[i]);
  }
  return MORTISE_OK;
}

static const mortise_reward_vtable vtable = {.struct_size = sizeof(mortise_reward_vtable),
                                             .create = create,
                                             .destroy = destroy,
                                             .granularity = MORTISE_REWARD_ROW,
                                             .score = score};
static const mortise_descriptor bytes = {.struct_size = sizeof(mortise_descriptor),
                                         .kind = MORTISE_KIND_REWARD,
                                         .name = "bytes",
                                         .summary = "bytes of the completion",
                                         .vtable = &vtable};
static const mortise_descriptor* const plugins[] = {&bytes};

MORTISE_EXPORT const mortise_pack mortise_pack_v1 = {.struct_size = sizeof(mortise_pack),
                                                     .abi_minor = MORTISE_TARGET_MINOR,
                                                     .min_host_minor = MORTISE_MIN_HOST_MINOR,
                                                     .num_plugins = 1,
                                                     .id = MORTISE_PACK_ID,
                                                     .version = MORTISE_PACK_VERSION,
                                                     .plugins = plugins};
