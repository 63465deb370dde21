// The device that `./dev test --device` names to tests of whole runs (MORTISE_TEST_DEVICE). Elsewhere the code of a device runs
// on the CPU. Thread rule: any thread.
#pragma once

#include <cstdlib>
#include <string>

namespace mortise::test {

// Nothing was named: empty.
inline std::string named_device() {
  const char* const name = std::getenv("MORTISE_TEST_DEVICE");
  return name == nullptr ? "" : name;
}
inline std::string test_device() { return named_device().empty() ? "cpu-as-device" : named_device(); }
inline bool tests_gpu() { return test_device().starts_with("cuda"); }

}  // namespace mortise::test
