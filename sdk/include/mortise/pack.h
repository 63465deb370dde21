/* The pack: the one exported object, its plugin descriptors and their parameter tables.
 *
 * The ELF note `.note.mortise` (owner "Mortise", type 1) has the same facts as JSON, and the host reads it without
 * running code. mortise_add_pack() of the SDK's CMake package makes it. On load, note and table must agree.
 *
 * One file may hold the packs of several majors: a symbol mortise_pack_vN and a note with "abi": N for each. A host
 * takes the newest major that it reads, and ignores the symbols and notes of the others.
 */
#ifndef MORTISE_PACK_H_
#define MORTISE_PACK_H_

#include "abi.h"
#include "host.h"

/* Kinds are string ids, so that a new kind needs no ABI change. Each is in the kind's own header (kinds/). */

/* parameter types */
#define MORTISE_PARAM_F64 0
#define MORTISE_PARAM_I64 1
#define MORTISE_PARAM_BOOL 2
#define MORTISE_PARAM_TEXT 3

/* What the text of a parameter names. The host then checks it before the run, follows it across a resume, or hides
 * it. An unknown role is read as PLAIN. Roles other than PLAIN are for MORTISE_PARAM_TEXT. */
#define MORTISE_ROLE_PLAIN 0
#define MORTISE_ROLE_COLUMN 1 /* a data column, or a dotted path into a JSON column; empty: none */
#define MORTISE_ROLE_FILE 2   /* a file that results depend on; empty: none */
#define MORTISE_ROLE_FOLDER 3 /* a folder with such files; empty: none */
#define MORTISE_ROLE_MODEL 4  /* the folder of a model, which the plugin loads; empty: none */
/* A password or key, best written as env:NAME. The host never shows or saves the value. */
#define MORTISE_ROLE_SECRET 5

/* One parameter: what a user may set next to the plugin's name in the config. eg: clip_ratio, f64, "0.2", 0 to 1. */
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
  int32_t role;   /* MORTISE_ROLE_*; 0 = PLAIN */
  uint32_t flags; /* 0 */
} mortise_param;

/* How far the outputs of one row depend on other rows or tokens; the engine splits batches accordingly. */
#define MORTISE_COUPLING_TOKEN 0  /* each token alone: may run inside the head's chunks */
#define MORTISE_COUPLING_ROW 1    /* tokens of a row together (gspo) */
#define MORTISE_COUPLING_GROUP 2  /* rows of one group_index together */
#define MORTISE_COUPLING_UPDATE 3 /* the whole update at once (kl_cov) */

/* descriptor flags */
#define MORTISE_FLAG_EXPERIMENTAL 1u /* no published outputs to compare with */
#define MORTISE_FLAG_CONCURRENT 2u   /* slots of one instance may run at the same time from several threads */
/* What the plugin needs. A host that confines it (rewards in workers) grants these rights and says so. */
#define MORTISE_FLAG_NEEDS_NETWORK 4u
#define MORTISE_FLAG_NEEDS_PROGRAMS 16u /* starts programs */
#define MORTISE_FLAG_NEEDS_FILES 32u    /* writes files */
#define MORTISE_FLAG_NEEDS_SANDBOX 64u  /* makes namespaces and mounts to confine what it starts */
/* Losses: the gradient is deliberately not that of the reported loss: parts are held constant (stop-gradient forms). */
#define MORTISE_FLAG_SURROGATE_GRADIENT 8u
/* Advantage estimators: compares the rows of a prompt with one another. The engine warns if a run samples each prompt
 * only once. */
#define MORTISE_FLAG_COMPARES_GROUP 128u
/* Rewards: the plugin gives rewards per token, in mortise_reward_out.token_rewards, which the host then provides. */
#define MORTISE_FLAG_TOKEN_REWARDS 256u
/* Needs a host extension that only the engine's own process has (mortise.score_model/1, mortise.generate/1). A host
 * that runs rewards in workers runs this one in the engine's process, unconfined, and says so. Prompts for such a
 * rollout backend must fit the engine's model. */
#define MORTISE_FLAG_NEEDS_ENGINE 512u
/* Losses and KL estimators: a successful call writes every element of its value and of grad_log_prob, also those of
 * masked tokens, so the host does not zero them first. The loops of the C++ layer do this. */
#define MORTISE_FLAG_WRITES_ALL 1024u
/* Advantage estimators: the rewards of each function are normalised within their group before they are added
 * up. The engine refuses to do the same a second time. */
#define MORTISE_FLAG_NORMALIZES_REWARDS 2048u
/* The descriptor's get_extension has "mortise.reads/1". A host loads a pack early for that flag alone. */
#define MORTISE_FLAG_TELLS_READS 4096u

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
  /* Names of optional inputs that this plugin needs: fields of its kind's input struct whose comment says "optional" or
   * "or null". The engine plans them before the first step: "values" asks for a critic, "reward_baselines" for a greedy
   * completion of every prompt, "ref_log_prob" for a reference model. A host refuses a run with a name that it cannot
   * give. Null-terminated array or null. */
  const char* const* requires_inputs;
  /* Engine stages that the plugin applies itself. The one name is "rollout_is_weights", of policy losses. A host
   * refuses a run with another. Null-terminated array or null. */
  const char* const* consumes;
  const void* vtable; /* the kind's: const mortise_policy_loss_vtable* ... */
  /* Policy losses: metrics of theirs that are written for every update too, besides clip_ratio/low_mean,
   * high_mean and region_mean. "NAME", or "COLUMN=NAME" for another name in the file of updates; eg:
   * "vespo_phi_mean=vespo/phi_seq_mean". Null-terminated array or null. */
  const char* const* update_metrics;
  /* Optional: the plugin's table for extension `id` that needs no instance, eg "mortise.reads/1", or null.
   * [control] */
  const void* (*get_extension)(const char* id)MORTISE_NOEXCEPT;
} mortise_descriptor;

typedef struct mortise_pack {
  uint32_t struct_size;
  uint32_t abi_minor;      /* MORTISE_PACK_MINOR */
  uint32_t min_host_minor; /* oldest host that can run it: MORTISE_MIN_HOST_MINOR */
  uint32_t num_plugins;
  const char* id;      /* reverse-domain, eg: "acme.match" */
  const char* version; /* semantic version, eg: "1.0.0" */
  const mortise_descriptor* const* plugins;
  /* Optional. Called once after loading, before all else of the pack. Non-zero refuses the pack; say why with host->log
   * and a null call. [control] */
  int32_t (*open)(const mortise_host* host) MORTISE_NOEXCEPT;
} mortise_pack;

/* The slots at the beginning of every vtable. `create` (mandatory) constructs a complete instance with the host's
 * parameters, or fails with host->fail and does not change *self; there is no separate init. The host calls `destroy`
 * (mandatory) once for every instance that create made, never during another call of it. It must end all threads of the
 * instance. Runs never share an instance; there may be several instances of one plugin at a time. */
#define MORTISE_VTABLE_HEAD                                                                                      \
  uint32_t struct_size;                                                                                          \
  uint32_t flags;                                                                                /* 0 */         \
  int32_t (*create)(const mortise_host* host, mortise_call* call, void** self) MORTISE_NOEXCEPT; /* [control] */ \
  void (*destroy)(void* self) MORTISE_NOEXCEPT;                                                  /* [control] */ \
  /* Optional: the instance's table for extension `id`, eg "mortise.state/1", or null. [control] */              \
  const void* (*get_extension)(void* self, const char* id)MORTISE_NOEXCEPT;

MORTISE_EXTERN_C MORTISE_EXPORT const mortise_pack mortise_pack_v1;
/* The name in ABI 0. A source that defines it still compiles, and the pack still loads, as one of ABI 0.2. A host that
 * finds both names reads mortise_pack_v1. */
MORTISE_EXTERN_C MORTISE_EXPORT const mortise_pack mortise_pack_v0;

#endif /* MORTISE_PACK_H_ */
