// Whether this build has a sanitizer. Steps then take five to twenty times as long. A test that compares numbers takes
// only some of its cases, because the release build compares all of them. A test that looks for memory errors takes
// all.
#pragma once

namespace mortise::test {

#if defined(MORTISE_ASAN) || defined(MORTISE_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(MORTISE_TSAN)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace mortise::test
