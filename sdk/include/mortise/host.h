/* Services that the host offers a plugin, in one table.
 *
 * The table is passed to `open` and to every `create` and stays valid for the life of the process. Every slot is [any]:
 * callable from any thread, also inside parallel_for, for as long as its `call` is alive. Text passed in is copied.
 * A slot whose comment begins with "Or null" may be null: test it with MORTISE_HAS before each call. All others are
 * there.
 */
#ifndef MORTISE_HOST_H_
#define MORTISE_HOST_H_

#include "abi.h"
#include "tensor.h"

/* log levels; another number is read as the nearest of these */
#define MORTISE_LOG_DEBUG 0
#define MORTISE_LOG_INFO 1
#define MORTISE_LOG_WARN 2
#define MORTISE_LOG_ERROR 3

/* how values of one metric are combined over calls and micro-batches */
#define MORTISE_REDUCE_MEAN 0 /* sum(value sums) / sum(weights): independent of the split of a batch */
#define MORTISE_REDUCE_SUM 1
#define MORTISE_REDUCE_MAX 2
#define MORTISE_REDUCE_MIN 3

typedef struct mortise_host {
  uint32_t struct_size;
  /* The host's minor of ABI 1. A pack of ABI 0 sees 2, the last minor of that. Test for a field, not for this. */
  uint32_t abi_minor;

  /* The extension table named `id` ("mortise.generate/1"), or null when this host has none. A table is valid for ever.
   * Ask in `create` or later: during `open` an extension of the engine may not be there yet. */
  const void* (*get_extension)(const char* id)MORTISE_NOEXCEPT;

  /* A line in the run's log, prefixed with plugin@pack. `call` may be null outside a call. */
  void (*log)(mortise_call* call, int32_t level, mortise_text text) MORTISE_NOEXCEPT;

  /* Adds to the metric `name`. For MEAN give the SUM of the values and the sum of their weights (e.g. sum over masked
   * tokens and the number of such tokens); for SUM, MAX and MIN `weight` is ignored. eg: "actor/pg_clipfrac". */
  void (*metric)(mortise_call* call, mortise_text name, double sum, double weight, int32_t reduction) MORTISE_NOEXCEPT;

  /* Sets the error text of this call and returns `code`: return host->fail(call, MORTISE_INVALID_ARGUMENT, text); The
   * first text of a call counts. */
  int32_t (*fail)(mortise_call* call, int32_t code, mortise_text text) MORTISE_NOEXCEPT;

  /* Rewards and environments: row or episode `row` (index in this call's batch) failed. It gets no reward and is
   * counted; the others of the call are as they would be without it. Returns `code`; the slot itself then continues. */
  int32_t (*fail_row)(mortise_call* call, int64_t row, int32_t code, mortise_text text) MORTISE_NOEXCEPT;

  /* Or null. Non-zero once the run is stopping (training ends its step first) or the deadline has passed: return soon,
   * with the result, MORTISE_CANCELLED or MORTISE_DEADLINE_EXCEEDED. */
  int32_t (*cancelled)(mortise_call* call) MORTISE_NOEXCEPT;
  /* Or null. CLOCK_MONOTONIC nanoseconds by which the slot must return; 0 = none. */
  int64_t (*deadline_ns)(mortise_call* call) MORTISE_NOEXCEPT;
  /* Or null. The finished part of the call's work, 0 to 1, to show to users. */
  void (*progress)(mortise_call* call, double fraction) MORTISE_NOEXCEPT;

  /* Or null. Scratch memory of the host, in its own memory, that lives until the slot returns; null if memory runs out.
   * `align` is a power of two up to 4096. */
  void* (*alloc)(mortise_call* call, uint64_t size, uint64_t align)MORTISE_NOEXCEPT;

  /* Or null. The cudaStream_t of the call's tensors. Null on the CPU; but null is also the legacy default stream, so
   * ask device_type of a tensor where they are. */
  void* (*stream)(mortise_call* call)MORTISE_NOEXCEPT;

  /* Or null. Runs fn(arg, begin, end) over [0, n) on the host's threads in pieces of at least `grain`; returns when all
   * are done. Nested calls run inline. fn must not throw. */
  void (*parallel_for)(mortise_call* call, int64_t n, int64_t grain, void (*fn)(void* arg, int64_t begin, int64_t end),
                       void* arg) MORTISE_NOEXCEPT;

  /* n random 64-bit numbers of stream `lane` from `counter` on. They are a function of (run seed, plugin, step, lane,
   * counter), so results do not depend on threads, splits or earlier calls. */
  void (*random_u64)(mortise_call* call, uint64_t lane, uint64_t counter, uint64_t n, uint64_t* out) MORTISE_NOEXCEPT;

  /* Parameters of the instance, validated and defaulted against the declared table before `create` is called.
   * Return 0, or MORTISE_NOT_FOUND / MORTISE_INVALID_ARGUMENT for a name or type that was not declared. Text stays
   * valid while the instance lives; in a slot without an instance (reads.h), until the slot returns. */
  int32_t (*param_f64)(mortise_call* call, const char* name, double* out) MORTISE_NOEXCEPT;
  int32_t (*param_i64)(mortise_call* call, const char* name, int64_t* out) MORTISE_NOEXCEPT;
  int32_t (*param_bool)(mortise_call* call, const char* name, int32_t* out) MORTISE_NOEXCEPT;
  int32_t (*param_text)(mortise_call* call, const char* name, mortise_text* out) MORTISE_NOEXCEPT;
} mortise_host;

#endif /* MORTISE_HOST_H_ */
