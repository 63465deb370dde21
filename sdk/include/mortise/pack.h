/* The pack: the one exported object, its plugin descriptors and their parameter tables.
 *
 * The same facts stand as JSON in the ELF note `.note.mortise` (owner "Mortise", type 1), which the host reads without
 * running code; mortise_add_pack() of the SDK's CMake package makes it. On load, note and table must agree.
 */
#ifndef MORTISE_PACK_H_
#define MORTISE_PACK_H_

#include "abi.h"
#include "host.h"

/* Kinds: string ids, so that a new kind needs no ABI change. */
#define MORTISE_KIND_POLICY_LOSS "mortise.policy_loss/1"
#define MORTISE_KIND_KL_ESTIMATOR "mortise.kl_estimator/1"
#define MORTISE_KIND_ADVANTAGE_ESTIMATOR "mortise.advantage_estimator/1"
#define MORTISE_KIND_REWARD "mortise.reward/1"
#define MORTISE_KIND_ROLLOUT_BACKEND "mortise.rollout_backend/1"

/* parameter types */
#define MORTISE_PARAM_F64 0
#define MORTISE_PARAM_I64 1
#define MORTISE_PARAM_BOOL 2
#define MORTISE_PARAM_TEXT 3

/* One parameter: what a user may set beside the plugin's name in the config. eg: clip_ratio, f64, "0.2", 0 to 1. */
typedef struct mortise_param {
  uint32_t struct_size;
  int32_t type;     /* MORTISE_PARAM_* */
  const char* name; /* [a-z][a-z0-9_]* */
  /* As TOML would spell the value: 0.2, 3, true, text without quotes; null = mandatory. "none" for F64 means "not set":
   * the plugin reads NaN, which no range excludes, and falls back as `doc` says. A user may write "none" too. */
  const char* default_text;
  const char* doc; /* one sentence; unit and the paper's symbol where there is one */
  double min, max; /* inclusive, for F64 and I64; used when has_range is 1 */
  int32_t has_range;
  uint32_t num_choices; /* for TEXT: the allowed values; 0 = any */
  const char* const* choices;
} mortise_param;

/* How far the outputs of one row depend on other rows or tokens; the engine splits batches accordingly. */
#define MORTISE_COUPLING_TOKEN 0  /* each token alone: may run inside the head's chunks */
#define MORTISE_COUPLING_ROW 1    /* tokens of a row together (gspo) */
#define MORTISE_COUPLING_GROUP 2  /* rows of one group_index together */
#define MORTISE_COUPLING_UPDATE 3 /* the whole update at once (kl_cov) */

/* descriptor flags */
#define MORTISE_FLAG_EXPERIMENTAL 1u /* no published outputs to compare with */
#define MORTISE_FLAG_CONCURRENT 2u   /* slots of one instance may run at the same time from several threads */
/* What the plugin cannot do without. A host that confines it (rewards in workers) grants it these and says so. */
#define MORTISE_FLAG_NEEDS_NETWORK 4u
#define MORTISE_FLAG_NEEDS_PROGRAMS 16u /* starts programs */
#define MORTISE_FLAG_NEEDS_FILES 32u    /* writes files */
#define MORTISE_FLAG_NEEDS_SANDBOX 64u  /* makes namespaces and mounts: confines what it starts */
/* Losses: the gradient is on purpose not that of the reported loss, as parts are held constant (stop-gradient forms).
 */
#define MORTISE_FLAG_SURROGATE_GRADIENT 8u
/* Advantage estimators: the rows of a prompt are compared with one another, so that a prompt that is sampled once has
 * little to teach. The engine warns of such a setting. */
#define MORTISE_FLAG_COMPARES_GROUP 128u
/* Rewards: some of it belongs to single tokens (mortise_reward_out.token_rewards, which the host then gives). */
#define MORTISE_FLAG_TOKEN_REWARDS 256u
/* Cannot do without a host extension that only the engine's own process has (mortise.score_model/1): a host that runs
 * rewards in workers runs this one in the engine's process, unconfined, and says so. */
#define MORTISE_FLAG_NEEDS_ENGINE 512u
/* Losses and KL estimators: a call that ends well has written every element of its value and of grad_log_prob, those of
 * masked tokens too, so that the host need not zero them first. The loops of the C++ layer do. */
#define MORTISE_FLAG_WRITES_ALL 1024u

typedef struct mortise_descriptor {
  uint32_t struct_size;
  uint32_t flags;
  const char* kind;    /* MORTISE_KIND_* */
  const char* name;    /* [a-z][a-z0-9_]*, unique in its kind within the pack; eg: "gspo" */
  const char* summary; /* one line */
  const char* doc;     /* formula and paper; may be null */
  int32_t coupling;    /* MORTISE_COUPLING_*; policy losses and KL estimators */
  uint32_t num_params;
  const mortise_param* const* params;
  /* Named optional inputs that this plugin cannot do without; planned for before the first step.
   * eg: "ref_log_prob", "values", "rollout_is_weights". Null-terminated array or null. */
  const char* const* requires_inputs;
  /* Engine stages whose effect the plugin takes over. eg: "rollout_is_weights". Null-terminated array or null. */
  const char* const* consumes;
  const void* vtable; /* of the kind: const mortise_policy_loss_vtable* ... */
} mortise_descriptor;

typedef struct mortise_pack {
  uint32_t struct_size;
  uint32_t abi_minor;      /* MORTISE_TARGET_MINOR of the build */
  uint32_t min_host_minor; /* oldest host that can run it */
  uint32_t num_plugins;
  const char* id;      /* reverse-domain, eg: "acme.match" */
  const char* version; /* semantic version, eg: "1.0.0" */
  const mortise_descriptor* const* plugins;
  /* Optional. Called once after loading, before any create. [control] Non-zero refuses the pack. */
  int32_t (*open)(const mortise_host* host) MORTISE_NOEXCEPT;
} mortise_pack;

/* Slots that every vtable begins with. `create` (mandatory) fully constructs an instance with the parameters of the
 * host, or fails with host->fail and leaves *self alone; there is no separate init. `destroy` (mandatory) is called
 * once for every instance that create made, never during another call, and leaves no thread behind. No instance is
 * shared between runs; there may be several of one plugin at a time. [control] = one thread at a time, nothing else of
 * the pack running; [compute] = one call per instance, any thread. */
#define MORTISE_VTABLE_HEAD                                                                                      \
  uint32_t struct_size;                                                                                          \
  uint32_t flags;                                                                                /* 0 */         \
  int32_t (*create)(const mortise_host* host, mortise_call* call, void** self) MORTISE_NOEXCEPT; /* [control] */ \
  void (*destroy)(void* self) MORTISE_NOEXCEPT;                                                  /* [control] */ \
  /* Optional: the instance's table for extension `id`, eg "mortise.state/1", or null. [control] */              \
  const void* (*get_extension)(void* self, const char* id)MORTISE_NOEXCEPT;

MORTISE_EXTERN_C MORTISE_EXPORT const mortise_pack mortise_pack_v0;

#endif /* MORTISE_PACK_H_ */
