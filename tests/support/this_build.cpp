// Defines what this_build.h declares. It is the only file of tests that knows the build's folders and sanitizers.
#include "support/this_build.h"

#include <cstdlib>

namespace mortise::test {
const char* kSourceFolder = SOURCE_FOLDER;
const char* kBuildFolder = BUILD_FOLDER;

namespace {

// Programs of a bundle run on machines that have neither folder (./dev test --bundle). This runs before constructors of
// tests, which list their cases by these folders.
[[gnu::constructor(101)]] void take_moved_folders() {
  if (const char* moved = std::getenv("MORTISE_SOURCE_FOLDER"); moved != nullptr) kSourceFolder = moved;
  if (const char* moved = std::getenv("MORTISE_BUILD_FOLDER"); moved != nullptr) kBuildFolder = moved;
}

}  // namespace

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
