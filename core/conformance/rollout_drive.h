// Runs a rollout backend through submit and poll, and checks its sequences as the engine does (rollout_ledger.h).
//
// Requests are in guarded memory that is unmapped when submit returns. Threading: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/subject.h"

namespace mortise::check {

struct GivenSequence {
  int64_t request_id = 0, sample_index = 0, weight_version = 0;
  int32_t finish_reason = 0;
  std::vector<int64_t> ids;
  std::vector<float> log_prob;
};

struct DriveOptions {
  size_t tail_bytes = 0;  // bytes that a newer host adds to structs
  int64_t version = 1;
  uint64_t seed = 11;
  size_t take_at_once = 1000;  // sequences per poll before the sink says stop
  bool abort = false;          // give everything up after submit
  int64_t max_new_tokens = 16;
};

struct DriveResult {
  // The backend took no request and said why (a recorded run takes only its own prompts).
  std::string refused;
  std::vector<GivenSequence> sequences;  // by request and sample
  std::vector<MetricRecord> metrics;
};

// Prompts that cases use: the request's, or three small ones.
[[nodiscard]] std::vector<std::vector<int64_t>> prompts_of(const Subject& subject);

// set_version, submit until all requests are accepted, poll until all samples are delivered. Broken: a failing slot, a
// sequence that is not outstanding, a sequence that never comes.
[[nodiscard]] Result<DriveResult> drive(const Instance& instance, const DriveOptions& options = {});
// drive, and not_applicable() where the backend refuses the prompts.
[[nodiscard]] Result<DriveResult> drive_ok(const Instance& instance, const DriveOptions& options = {});

}  // namespace mortise::check
