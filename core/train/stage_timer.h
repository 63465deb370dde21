// Adds the seconds of a stage to the metrics when it ends.
#pragma once

#include "foundation/base/clock.h"
#include "foundation/metrics/registry.h"

namespace mortise {

class StageTimer {
 public:
  StageTimer(MetricSet& metrics, const char* name) : metrics_(&metrics), name_(name) {}
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  ~StageTimer() { metrics_->add(name_, watch_.elapsed_s()); }

 private:
  MetricSet* metrics_;
  const char* name_;
  Stopwatch watch_;
};

}  // namespace mortise
