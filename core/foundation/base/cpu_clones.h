// MORTISE_CPU_CLONES: the function is compiled once for each x86 level, and the loader picks the best one.
//
// For functions that are not templates; the functions they call must be inlined. On other processors, and under
// ThreadSanitizer, which starts after the loader's choice, there is only the plain function.
#pragma once

// For functions that a clone calls.
#define MORTISE_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define MORTISE_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MORTISE_CPU_CLONES
#endif
