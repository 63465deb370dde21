// What a test asks about the build that runs it: the folders of the sources and of the build, and its sanitizers. They are
// variables, not literals and not macros: with a path in its command, ccache would compile each test again in every clone,
// and the build for AddressSanitizer runs test code that the release build compiled (cmake/MortiseTargets.cmake).
// cmake/test_pch.h includes this file for every test.
#pragma once

namespace mortise::test {
extern const char* kSourceFolder;
extern const char* kBuildFolder;

// Whether this build has a sanitizer. Steps then take five to twenty times as long. A test that compares numbers takes
// only some of its cases, because the release build compares all of them. A test that looks for memory errors takes
// all.
extern const bool kSanitized;
extern const bool kAddressSanitizer;
extern const bool kThreadSanitizer;

// Whether assert() of the rooms ends the process: not in a release build.
extern const bool kAssertions;
}  // namespace mortise::test

#define MORTISE_SOURCE_DIR ::mortise::test::kSourceFolder
#define MORTISE_BINARY_DIR ::mortise::test::kBuildFolder
