/* Draft host extension mortise.weight_group/0: a rollout backend sends weights from this process into the memory of the
 * processes that sample. It may change with any version of Mortise.
 *
 * host->get_extension(MORTISE_EXT_WEIGHT_GROUP) is a `const mortise_weight_group_vtable*`, or null in a process that
 * trains nothing. This process is rank 0 of a group, and each process that samples is one of the other ranks. The group
 * meets at a TCPStore of torch.distributed, which this process serves. `join` and `send` work on a thread of the host:
 * the backend asks `state` until they are done, and speaks to its servers meanwhile. One of the two runs at a time.
 */
#ifndef MORTISE_EXT_DRAFT_WEIGHT_GROUP_H_
#define MORTISE_EXT_DRAFT_WEIGHT_GROUP_H_

#include "../../host.h"

#define MORTISE_EXT_WEIGHT_GROUP "mortise.weight_group/0"

typedef struct mortise_weight_group_options {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* "gloo", "nccl": the backends of torch.distributed. "nccl_id": NCCL alone, among the ranks that know `unique_id`;
   * joining ends with a sum of one float32. "cuda_ipc": a process on this GPU opens the pieces that `share` gives; there
   * is no store, and nothing is joined or sent. All but gloo need a policy on a GPU. */
  mortise_text carrier;
  mortise_text address; /* this machine's, as the other ranks reach it */
  mortise_text prefix;  /* begins the keys of gloo and nccl in the store; may be empty */
  int64_t num_ranks;    /* with this process; >= 2 */
  int64_t timeout_ns;   /* for `join`, and for each piece that is sent */
} mortise_weight_group_options;

typedef struct mortise_weight_piece {
  const void* data; /* host memory */
  uint64_t num_bytes;
} mortise_weight_piece;

typedef struct mortise_weight_send {
  uint32_t struct_size;
  uint32_t flags;                     /* 0 */
  const mortise_weight_piece* pieces; /* [num_pieces] */
  uint64_t num_pieces;
  /* 0: each piece is one broadcast from rank 0, of bytes. Otherwise pieces are put together, without gaps, until a
   * broadcast has more bytes than this. */
  uint64_t bucket_bytes;
  /* The plugin's function: nothing of the pieces is used any more. Called once, from any thread; it may be after
   * `close`, where a carrier cannot be interrupted. */
  void (*release)(void* context) MORTISE_NOEXCEPT;
  void* context;
} mortise_weight_send;

/* What torch's UntypedStorage._new_shared_cuda needs to open a piece. Borrowed for the call that gives it. */
typedef struct mortise_shared_piece {
  uint32_t struct_size;
  int32_t waits_for_event;
  mortise_text device_uuid; /* as torch writes it */
  int64_t device;
  mortise_bytes handle;
  uint64_t num_bytes;
  uint64_t offset; /* in the memory of the handle */
  mortise_bytes counter;
  uint64_t counter_offset;
  mortise_bytes event;
} mortise_shared_piece;

typedef struct mortise_shared_sink {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  void* context;
  void (*piece)(void* context, const mortise_shared_piece* piece) MORTISE_NOEXCEPT;
} mortise_shared_sink;

typedef struct mortise_weight_group_vtable {
  uint32_t struct_size;
  uint32_t flags;
  /* Serves a store, and waits for nobody. FAILED_PRECONDITION: this process cannot use the carrier. [control] */
  int32_t (*open)(const mortise_host* host, mortise_call* call, const mortise_weight_group_options* options,
                  void** group) MORTISE_NOEXCEPT;
  int64_t (*port)(void* group) MORTISE_NOEXCEPT;            /* the store's */
  mortise_bytes (*unique_id)(void* group) MORTISE_NOEXCEPT; /* nccl_id: 128 bytes; otherwise empty */
  /* Sets a key of the store that is none of the group's own. [control] */
  int32_t (*set)(void* group, mortise_call* call, mortise_text key, mortise_bytes value) MORTISE_NOEXCEPT;
  int32_t (*join)(void* group, mortise_call* call) MORTISE_NOEXCEPT;
  int32_t (*send)(void* group, mortise_call* call, const mortise_weight_send* what) MORTISE_NOEXCEPT;
  /* *is_busy: 1 while `join` or `send` works. *failure: why the last one failed, or empty; valid until the next call. */
  void (*state)(void* group, int32_t* is_busy, mortise_text* failure) MORTISE_NOEXCEPT;
  /* cuda_ipc: copies the pieces to the GPU and tells `sink` of each, in their order. They stay there until `close`.
   * `release` of `what` is called before the slot returns. [control] */
  int32_t (*share)(void* group, mortise_call* call, const mortise_weight_send* what,
                   const mortise_shared_sink* sink) MORTISE_NOEXCEPT;
  void (*close)(void* group) MORTISE_NOEXCEPT; /* does not wait for what works */
} mortise_weight_group_vtable;

#endif /* MORTISE_EXT_DRAFT_WEIGHT_GROUP_H_ */
