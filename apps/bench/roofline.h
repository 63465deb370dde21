// What this machine can do at most, by the two measures that bound a decode step. Thread rule: one call at a time, on
// an otherwise idle machine.
#pragma once

namespace mortise {

struct Roofline {
  double read_bytes_per_s = 0;  // summing memory far beyond the caches, all threads at once; best of several passes
  double flops_per_s = 0;       // float32 multiply-adds on registers, each counted as two; all threads at once
};

Roofline measure_roofline(int threads);

}  // namespace mortise
