// The mortise_host table that plugins call, and the state of one call behind the opaque mortise_call.
//
// Threading: any thread may call any service while its call is alive. One mutex per call guards the shared state. Only
// this room knows the struct; plugins see a pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/formats/json.h"
#include "mortise/host.h"
#include "plugin/host/instance.h"

namespace mortise {

// "DEADLINE_EXCEEDED" for 4; "status 99" for a code that is not one of the sixteen.
[[nodiscard]] std::string status_name(int32_t code);

// The table of this process for packs of the ABI `abi`. The two differ in abi_minor alone.
[[nodiscard]] const mortise_host* host_table(int32_t abi = MORTISE_ABI_MAJOR);

// A parameter with its text kept NUL-free and stable for param_text.
struct InstanceIdentity {
  std::string label;      // "policy_loss gspo@mortise.losses 0.1.0 (1a2b3c4d5e6f)"
  std::string prefix;     // "gspo@mortise.losses", of log lines
  Json params;            // validated; text is valid while the instance lives
  uint64_t rng_seed = 0;  // run seed mixed with the plugin's identity
};

// Where lines of plugins go instead of the log of this process (a worker passes them on); empty: the log. Set it before
// the first plugin call.
void set_plugin_log(std::function<void(int32_t level, const std::string& line)> sink);
// The same for texts of host->progress, "[gspo@mortise.losses] 40%"; empty: the terminal's moving line.
void set_plugin_progress(std::function<void(const std::string& line)> sink);

}  // namespace mortise

// In the global namespace: the C headers declare it there.
struct mortise_call {
  const mortise::InstanceIdentity* identity = nullptr;
  int64_t step = 0;
  int64_t deadline_ns = 0;  // CLOCK_MONOTONIC, 0 = none
  int64_t num_rows = 0;     // rows of the batch, for fail_row; 0 where rows mean nothing
  const std::atomic<bool>* cancelled = nullptr;
  void* stream = nullptr;  // where the call's tensors are on a device: theirs

  std::mutex mutex;  // guards all below
  std::vector<mortise::MetricRecord> metrics;
  std::vector<mortise::FailedRow> failed_rows;
  int32_t fail_code = 0;
  std::string fail_text;
  bool bad_file = false;    // set by a host extension: a file failed that the settings name
  std::string misuse;       // how the services themselves were misused, e.g. fail_row outside the batch
  int64_t progress_ns = 0;  // when it was last shown; 0: never
  uint64_t arena_bytes = 0;
  std::pmr::monotonic_buffer_resource arena;
};
