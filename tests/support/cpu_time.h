// CPU time of the calling thread, for tests that bound what an input may cost. Such a bound is a multiple of other work
// that the same test measures in the same run, so it holds on a slow machine and under sanitizers.
#pragma once

#include <time.h>

#include <algorithm>
#include <limits>

namespace mortise::test {

inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The CPU time of one call.
template <class Work>
double cpu_seconds_of(const Work& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

// The shortest of three calls: a machine that was busy with something else makes it longer.
template <class Work>
double least_cpu_seconds_of(const Work& work) {
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < 3; ++round) least = std::min(least, cpu_seconds_of(work));
  return least;
}

}  // namespace mortise::test
