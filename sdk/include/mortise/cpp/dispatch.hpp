/* The x86 level that the vectorised loops run at: chosen once, by what the CPU has.
 *
 * Each loop is compiled for the baseline, for x86-64-v3 (AVX2, FMA) and for v4 (AVX-512); MORTISE_SDK_CPU=baseline, v3
 * or v4 in the environment forces a lower one, which is how all of them are tested. An unoptimised build and other
 * machines have the baseline only.
 */
#ifndef MORTISE_CPP_DISPATCH_HPP_
#define MORTISE_CPP_DISPATCH_HPP_

#include <cstdlib>
#include <string_view>

#if defined(__x86_64__) && defined(__OPTIMIZE__) && (defined(__clang__) || defined(__GNUC__))
#define MORTISE_HAS_LEVELS 1
#define MORTISE_TARGET_BASELINE __attribute__((flatten, noinline))
#define MORTISE_TARGET_V3 __attribute__((target("avx2,fma,bmi,bmi2,lzcnt,f16c"), flatten, noinline))
#define MORTISE_TARGET_V4 \
  __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi,bmi2,lzcnt,f16c"), flatten, noinline))
#else
#define MORTISE_HAS_LEVELS 0
#define MORTISE_TARGET_BASELINE
#endif

namespace mortise {

enum class CpuLevel { kBaseline = 0, kV3 = 3, kV4 = 4 };

namespace detail {

inline CpuLevel best_cpu_level() {
#if MORTISE_HAS_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return CpuLevel::kV4;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
    return CpuLevel::kV3;
  }
#endif
  return CpuLevel::kBaseline;
}

inline CpuLevel choose_cpu_level() {
  const CpuLevel best = best_cpu_level();
  const char* forced = std::getenv("MORTISE_SDK_CPU");
  if (forced == nullptr) return best;
  const std::string_view name(forced);
  CpuLevel wanted = best;
  if (name == "baseline") wanted = CpuLevel::kBaseline;
  if (name == "v3") wanted = CpuLevel::kV3;
  return wanted < best ? wanted : best;
}

}  // namespace detail

// Tests assign it; all other code only reads it.
inline CpuLevel& cpu_level() {
  static CpuLevel level = detail::choose_cpu_level();
  return level;
}

}  // namespace mortise

#endif  // MORTISE_CPP_DISPATCH_HPP_
