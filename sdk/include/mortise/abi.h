/* Mortise plugin ABI: versions, status codes, text views and the struct_size rule.
 *
 * A pack is a shared object that exports the constant `mortise_pack_v1` (pack.h), and no symbol but pack symbols. The
 * host reads its metadata from an ELF note without running any code, then loads it once and never unloads it. All
 * headers here are C11 and C++17, need only <stdint.h> and <stddef.h>, and hold no libtorch. Machines have 64-bit
 * pointers and little endian numbers; a struct is aligned to 8 bytes at most.
 *
 * This ABI is frozen: a pack of 1.x loads in every program that reads ABI 1, and no field, number or word of a
 * comment gets another meaning.
 *
 * How to read these headers. Every struct and slot exists since 1.0 unless its comment says "since". The comment
 * of a slot says when the host calls it, its inputs and outputs, and how it fails. It ends with the thread tag:
 *   [control]  on any thread, and no other call of the same instance runs
 *   [compute]  one call per instance at a time, on any thread; several with MORTISE_FLAG_CONCURRENT
 *   [any]      from any thread, also several at the same time, while its `call` is alive
 * Other instances of the pack may run during each of these, so what instances share needs a lock. A slot that has no
 * instance (`create`, a descriptor's get_extension, `tell`) may run at the same time as any other. Where the host
 * offers the table (score_model.h, generate.h), the plugin keeps to its tags: an instance is then what `create` or
 * `open` made. A function of a sink or of an output struct is called during the slot that got it, and copies what it is
 * given. One without a tag is called from the thread that runs the slot. `context` or `sink` of its struct is its first
 * argument.
 *
 * A field is mandatory unless its comment says "optional", "or null" or "0 = ...". Pointers from the host are borrowed
 * until the slot returns (device.h: tensors on a device). Pointers in descriptors live as long as the library. "eg:"
 * gives real values.
 *
 * Growth rules (RULES.md R1-R9): the first field of every growing struct is `struct_size`; whoever fills the struct
 * sets it. New fields go to the end. A reader takes min(its size, struct_size) and treats the rest as zero; zero means
 * "not given". Vtables and growing structs are always passed by pointer. No bool, enum, long, bitfield or union. No
 * struct ends with a hole: a later field that fell into it would not change struct_size. A field `padding` is 0.
 *
 * Numbers and flags that a reader does not know. Later minors may add numbers to a list (MORTISE_FINISH_*, column
 * types) and flags:
 *   reader          unknown flag   unknown number of a list
 *   host            ignored        refused, unless the comment of the list says otherwise
 *   plugin          ignored        read as the comment of the list says
 * A pack that cannot run in a host that ignores its new flag raises min_host_minor. A field `flags` is 0 where its
 * comment names no flags. Whoever fills the struct sets it.
 *
 * Texts. A name or id that a programmer writes (`const char*`) is ASCII and ends with a zero byte. All else is a
 * mortise_text.
 */
#ifndef MORTISE_ABI_H_
#define MORTISE_ABI_H_

#include <stddef.h>
#include <stdint.h>

#define MORTISE_ABI_MAJOR 1
#define MORTISE_ABI_MINOR 0

/* The minor for which an author builds. Newer members are hidden, so that a pack built with a new SDK loads in an old
 * host until its author asks for more: mortise_add_pack(... TARGET_MINOR n), or -D. Code that makes no pack (a host, a
 * test, the note maker) sees everything.
 *
 * The numbers 1 and 2 are minors of ABI 0, and 1.0 has all that 0.2 had. Sources of that time may still ask for them
 * and get 1.0. No minor of ABI 1 has these numbers: the one after 1.0 is 1.3. */
#ifndef MORTISE_TARGET_MINOR
#ifdef MORTISE_PACK_ID
#define MORTISE_TARGET_MINOR 0
#else
#define MORTISE_TARGET_MINOR MORTISE_ABI_MINOR
#endif
#endif
#if MORTISE_TARGET_MINOR < 0 || (MORTISE_TARGET_MINOR > MORTISE_ABI_MINOR && MORTISE_TARGET_MINOR > 2)
#error "MORTISE_TARGET_MINOR is no minor that these headers know: take a newer SDK, or a value up to MORTISE_ABI_MINOR"
#endif
/* What a pack writes into abi_minor and min_host_minor: the minor it was built for, and the oldest host that runs it. */
#if MORTISE_TARGET_MINOR <= 2
#define MORTISE_PACK_MINOR 0
#else
#define MORTISE_PACK_MINOR MORTISE_TARGET_MINOR
#endif
#ifndef MORTISE_MIN_HOST_MINOR /* mortise_add_pack(... MIN_HOST_MINOR n) */
#define MORTISE_MIN_HOST_MINOR 0
#endif

#ifdef __cplusplus
#define MORTISE_NOEXCEPT noexcept
#define MORTISE_EXTERN_C extern "C"
#else
#define MORTISE_NOEXCEPT
#define MORTISE_EXTERN_C extern
#endif
#define MORTISE_EXPORT __attribute__((visibility("default")))

#if !defined(__LP64__) || (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#error "The plugin ABI is for 64-bit little endian machines: build the pack for x86_64 or aarch64"
#endif

/* Status of a slot: 0, or one of the sixteen canonical codes. int32_t everywhere. Any other is read as UNKNOWN. */
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

/* Whether the struct at `ptr` is large enough to have `field`, of any type. Test every field that is newer than the
 * minor you need: a text or a column with this, and then its size; a pointer, a slot or a number with MORTISE_HAS,
 * which also asks whether it is neither null nor 0. */
#define MORTISE_HAS_FIELD(ptr, field) ((ptr)->struct_size >= offsetof(__typeof__(*(ptr)), field) + sizeof((ptr)->field))
#define MORTISE_HAS(ptr, field) (MORTISE_HAS_FIELD(ptr, field) && (ptr)->field)

/* Opaque: one call of one slot. It belongs to the host and is valid until the slot returns. Never store it. */
typedef struct mortise_call mortise_call;

#endif /* MORTISE_ABI_H_ */
