// Whether a sanitizer watches this build. Steps then take five to twenty times as long: a test that compares numbers,
// all of which the release build compares, takes a share of its cases; one that looks for bad memory takes all.
#pragma once

namespace mortise::test {

#if defined(MORTISE_ASAN) || defined(MORTISE_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace mortise::test
