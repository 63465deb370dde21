// One usual piece of work for a plugin of any kind, for cases that are about no kind in particular.
#pragma once

#include <string>
#include <vector>

#include "conformance/subject.h"

namespace mortise::check {

struct WorkShape {
  size_t tail_bytes = 0;  // bytes that a newer host adds to structs
  bool optional_outputs = true;
  uint64_t seed = 1;
};

// What came out, as numbers to compare; broken() where the work failed. A rollout backend that refuses the prompts is
// not applicable.
[[nodiscard]] Result<std::vector<double>> do_work(const Instance& instance, const WorkShape& shape = {});

// The same bits (NaN equals NaN), else broken(`what`).
[[nodiscard]] Result<> demand_same(const std::vector<double>& one, const std::vector<double>& other,
                                   std::string_view what);

// create on an ordinary host, the work, destroy.
[[nodiscard]] Result<std::vector<double>> live_once(const Subject& subject);

}  // namespace mortise::check
