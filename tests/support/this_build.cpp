// Defines what this_build.h declares. It is the only file of tests that knows the build's folders and sanitizers.
#include "support/this_build.h"

namespace mortise::test {
const char* const kSourceFolder = SOURCE_FOLDER;
const char* const kBuildFolder = BUILD_FOLDER;

#if defined(MORTISE_ASAN)
const bool kAddressSanitizer = true;
#else
const bool kAddressSanitizer = false;
#endif
#if defined(MORTISE_TSAN)
const bool kThreadSanitizer = true;
#else
const bool kThreadSanitizer = false;
#endif
#if defined(NDEBUG)
const bool kAssertions = false;
#else
const bool kAssertions = true;
#endif
const bool kSanitized = kAddressSanitizer || kThreadSanitizer;
}  // namespace mortise::test
