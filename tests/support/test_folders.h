// The folders of the sources and of this build, for every test (cmake/test_pch.h includes this file). They are variables,
// not literals of the command line: with a path in its command, ccache would compile each test again in every clone.
#pragma once

namespace mortise::test {
extern const char* const kSourceFolder;
extern const char* const kBuildFolder;
}  // namespace mortise::test

#define MORTISE_SOURCE_DIR ::mortise::test::kSourceFolder
#define MORTISE_BINARY_DIR ::mortise::test::kBuildFolder
