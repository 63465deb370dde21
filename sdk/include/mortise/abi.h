/* Mortise plugin ABI: versions, status codes, text views and the struct_size rule.
 *
 * A pack is a shared object with ONE exported symbol, the constant `mortise_pack_v0` (pack.h). The host reads its
 * metadata from an ELF note without running any code, then loads it once and never unloads it. All headers here are
 * C11 and C++17, need only <stdint.h> and <stddef.h>, and hold no libtorch.
 *
 * How these headers are to be read. Every struct and slot is there since minor 0.1 unless its comment says "since".
 * A slot's comment says when it is called, what it gets and gives, and how it fails; its last word is the thread tag:
 *   [control]  one thread at a time, and nothing else of the pack is running
 *   [compute]  one call per instance at a time, on any thread; several with MORTISE_FLAG_CONCURRENT
 *   [any]      from any thread, whenever its `call` is alive
 * A field is mandatory unless its comment says "optional", "or null" or "0 = ..."; pointers that the host passes in are
 * borrowed until the slot returns, those in descriptors live as long as the library. "eg:" gives real values.
 *
 * Growth rules (RULES.md R1-R9): the first field of every growing struct is `struct_size`, set by whoever fills the
 * struct; fields are only appended; a reader takes min(its size, struct_size) and treats the rest as zero; zero means
 * "not given". Vtables and growing structs are always reached by pointer. No bool, enum, long, bitfield or union.
 */
#ifndef MORTISE_ABI_H_
#define MORTISE_ABI_H_

#include <stddef.h>
#include <stdint.h>

/* ABI 0 is the time before the freeze: the minor may still change meanings. It becomes mortise_pack_v1 when frozen. */
#define MORTISE_ABI_MAJOR 0
#define MORTISE_ABI_MINOR 1

/* The minor that an author builds for. Members newer than it are hidden, so that a pack built with a new SDK keeps
 * loading in an old host until its author asks for more. */
#ifndef MORTISE_TARGET_MINOR
#define MORTISE_TARGET_MINOR 1
#endif
#if MORTISE_TARGET_MINOR < 1 || MORTISE_TARGET_MINOR > MORTISE_ABI_MINOR
#error "MORTISE_TARGET_MINOR is no minor that these headers know: take a newer SDK, or a value up to MORTISE_ABI_MINOR"
#endif

#ifdef __cplusplus
#define MORTISE_NOEXCEPT noexcept
#define MORTISE_EXTERN_C extern "C"
#else
#define MORTISE_NOEXCEPT
#define MORTISE_EXTERN_C extern
#endif
#define MORTISE_EXPORT __attribute__((visibility("default")))

/* Status of a slot: 0, or one of the sixteen canonical codes. int32_t everywhere. */
#define MORTISE_OK 0
#define MORTISE_CANCELLED 1
#define MORTISE_UNKNOWN 2
#define MORTISE_INVALID_ARGUMENT 3
#define MORTISE_DEADLINE_EXCEEDED 4
#define MORTISE_NOT_FOUND 5
#define MORTISE_ALREADY_EXISTS 6
#define MORTISE_PERMISSION_DENIED 7
#define MORTISE_RESOURCE_EXHAUSTED 8
#define MORTISE_FAILED_PRECONDITION 9
#define MORTISE_ABORTED 10
#define MORTISE_OUT_OF_RANGE 11
#define MORTISE_UNIMPLEMENTED 12
#define MORTISE_INTERNAL 13
#define MORTISE_UNAVAILABLE 14
#define MORTISE_DATA_LOSS 15
#define MORTISE_UNAUTHENTICATED 16

/* UTF-8 text; not terminated; data may be null when size is 0. A frozen leaf: it never grows. */
typedef struct mortise_text {
  const char* data;
  uint64_t size; /* bytes */
} mortise_text;

/* Bytes of any kind. A frozen leaf. */
typedef struct mortise_bytes {
  const void* data;
  uint64_t size;
} mortise_bytes;

/* Is `field` present in the struct that `ptr` points to? Test every field newer than the minor you need with it. */
#define MORTISE_HAS(ptr, field) \
  ((ptr)->struct_size >= offsetof(__typeof__(*(ptr)), field) + sizeof((ptr)->field) && (ptr)->field)

/* Opaque: one call of one slot. The host's; valid until the slot returns; never stored. */
typedef struct mortise_call mortise_call;

#endif /* MORTISE_ABI_H_ */
