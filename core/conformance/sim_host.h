// The host that a case shows a plugin: of any version, with or without its optional services, recording what happens.
//
// One per process: services are plain functions. The table is in guarded memory, so that a plugin which uses a slot
// that this host does not have is detected. Services are those of core/plugin/host, with recorded logging, parallel_for
// on the calling thread in a chosen order, text parameters without a zero at their end, a generator that echoes
// (echo_engine.h) as mortise.generate/1, and reward models without weights (echo_scorer.h) as mortise.score_model/1.
// Threading: services may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mortise/host.h"

namespace mortise::check {

struct HostShape {
  size_t tail_bytes = 0;   // a newer host: unknown slots, with addresses that cannot be called
  bool optional = true;    // false: the optional services are null (cancelled ... parallel_for)
  bool extensions = true;  // false: get_extension knows none
  bool params = true;      // false: no parameter has a value
  bool memory = true;      // false: alloc gives null
  bool backwards = false;  // parallel_for hands out its pieces last first
  int64_t cancel_ns = 0;   // CLOCK_MONOTONIC from which on cancelled() is 1; 0: never
};

// What the plugin did with the services, since the last make_host().
struct HostLog {
  std::mutex mutex;
  std::vector<std::string> lines;       // logged
  std::vector<std::string> undeclared;  // "param_f64 'x': NOT_FOUND"
  std::atomic<int64_t> num_parallel = 0;
};

// The table; valid for ever. The shape's switches hold for every table made before.
const mortise_host* make_host(const HostShape& shape = {});
HostLog& host_log();

}  // namespace mortise::check
