// The entry of every fuzz target: runs it and checks what it cost.
//
//   CPU time   at most 2 s, and 1 s for each MiB of input (times kSlower under a sanitizer)
//   memory     at most 64 MiB, and 4 times the input, allocated at a time beyond what was there before; 8 times for the
//              files of models and runs that are JSON (CMakeLists.txt; core/parse/json_reader.h says why)
//
// Compressed files, which may expand to 64 MiB whatever their size, get 15 s and 768 MiB: the row, its value, and a zstd
// window.
//
// An input that takes too long is run once more before it counts, so that a page fault storm of the machine does not. If it
// takes too long again, a loop of known length tells how much slower than an idle core of 3 GHz the machine is right now, and the
// limit grows as much.
// Thread rule: one thread, as the fuzzer's.
#include <algorithm>

#include "fuzz/allocations.h"
#include "fuzz/fuzz_support.h"
#include "support/cpu_time.h"

namespace mortise::fuzz {
namespace {

#if defined(MORTISE_ASAN)
constexpr double kSlower = 30;  // nothing is optimised in the tests' build
#else
constexpr double kSlower = 1;
#endif
constexpr double kMiB = 1048576.0;
#if defined(MORTISE_FUZZ_COMPRESSED)
constexpr double kBaseSeconds = 15;
constexpr double kBaseBytes = 768 * kMiB;
#else
constexpr double kBaseSeconds = 2;
constexpr double kBaseBytes = 64 * kMiB;
#endif
constexpr double kSecondsPerMiB = 1;
#if defined(MORTISE_FUZZ_ORDERED_JSON)
constexpr double kBytesPerByte = 8;
#else
constexpr double kBytesPerByte = 4;
#endif

// How many times longer the loop takes than on an idle core of 3 GHz, and at least 1. A step of the loop needs the one before:
// three cycles for the product, one for the sum.
double slowness_now() {
  if (kSlower > 1) return 1;  // large enough already, and the loop is not optimised there
  constexpr int64_t kLoopSteps = 60'000'000;
  constexpr double kLoopSeconds = 0.08;
  volatile uint64_t seed = 1;
  const double seconds = test::cpu_seconds_of([&] {
    uint64_t state = seed;
    for (int64_t i = 0; i < kLoopSteps; ++i) state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    seed = state;
  });
  return std::max(1.0, seconds / kLoopSeconds);
}

void check_cost(const uint8_t* data, size_t size) {
  const auto bytes = static_cast<double>(size);
  const double most_seconds = kSlower * (kBaseSeconds + kSecondsPerMiB * bytes / kMiB);
  double seconds = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Allocations allocations;
    seconds = test::cpu_seconds_of([&] { run_one(data, size); });
    const auto peak = static_cast<double>(allocations.peak_bytes());
    if (peak > kBaseBytes + kBytesPerByte * bytes) {
      std::fprintf(stderr, "%.1f MiB were allocated for an input of %zu bytes\n", peak / kMiB, size);
      require(false, "memory is at most the base (64 MiB) and 4 or 8 times the input");
    }
    if (seconds <= most_seconds) return;
  }
  const double slowness = slowness_now();
  if (seconds <= most_seconds * slowness) return;
  std::fprintf(stderr,
               "%.2f s of CPU time for an input of %zu bytes, and at most %.2f s are allowed on this machine now\n",
               seconds, size, most_seconds * slowness);
  require(false, "CPU time is at most the base (2 s), and 1 s for each MiB of input");
}

}  // namespace
}  // namespace mortise::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mortise::fuzz::check_cost(data, size);
  return 0;
}
