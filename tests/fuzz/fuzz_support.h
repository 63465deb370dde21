// What the fuzz targets share. A target is `run_one`; a broken property aborts, which the fuzzer reports as a crash.
// cost.cpp calls it and holds it to its budget of time and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace mortise::fuzz {

// The target: reads any bytes with the real reader.
void run_one(const uint8_t* data, size_t size);

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Not assert(): it must hold in every build type.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", property);
  std::abort();
}

}  // namespace mortise::fuzz
