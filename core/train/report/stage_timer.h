// Adds the seconds of a stage to the metrics when it ends, and of one that computes the share of the machine's peak
// that it used.
#pragma once

#include "foundation/base/clock.h"
#include "foundation/metrics/op_timer.h"
#include "foundation/metrics/registry.h"
#include "learn/update/pass_flops.h"

namespace mortise {

class StageTimer {
 public:
  StageTimer(MetricSet& metrics, const char* name) : metrics_(&metrics), name_(name), op_(name) {}
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  ~StageTimer() { metrics_->add(name_, watch_.elapsed_s()); }

 private:
  MetricSet* metrics_;
  const char* name_;
  OpTimer op_;
  Stopwatch watch_;
};

// What passes count, against what the machine could do.
struct ComputeUse {
  FlopCount flops;
  double peak_flops = 0.0;  // per second
};

class ComputeTimer {
 public:
  // `share` is the name of a mean (perf/mfu/*), weighed by the seconds.
  ComputeTimer(MetricSet& metrics, const char* seconds, const char* share, const ComputeUse& use)
      : metrics_(&metrics), seconds_(seconds), share_(share), use_(&use), before_(use.flops.total), op_(seconds) {}
  ComputeTimer(const ComputeTimer&) = delete;
  ComputeTimer& operator=(const ComputeTimer&) = delete;
  ~ComputeTimer() {
    const double seconds = watch_.elapsed_s() - left_out_;
    metrics_->add(seconds_, seconds);
    if (use_->peak_flops > 0.0) metrics_->add(share_, (use_->flops.total - before_) / use_->peak_flops, seconds);
  }
  // Something else went on inside it, which is counted elsewhere.
  void leave_out(double seconds) { left_out_ += seconds; }

 private:
  MetricSet* metrics_;
  const char *seconds_, *share_;
  const ComputeUse* use_;
  double before_, left_out_ = 0.0;
  OpTimer op_;
  Stopwatch watch_;
};

}  // namespace mortise
