// Defines the folders of test_folders.h. cmake/MortiseTargets.cmake gives their paths to this file alone.
#include "support/test_folders.h"

namespace mortise::test {
const char* const kSourceFolder = SOURCE_FOLDER;
const char* const kBuildFolder = BUILD_FOLDER;
}  // namespace mortise::test
