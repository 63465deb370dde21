// Sinks of metrics: a JSONL file, TensorBoard event files, and a line on the console.
// Thread rule: one thread per sink. A failing sink says so once per call, and training decides what to do. The sinks of
// files keep a row that they could not write. They write it with the next one, at sync() or at close().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/metrics/registry.h"

namespace mortise {

// One object of metrics.jsonl or updates.jsonl. The first key is the x axis: {{"step", 7}} or {{"update", 14}, {"step",
// 7}}.
struct MetricRow {
  std::vector<std::pair<std::string, int64_t>> keys;
  std::vector<MetricValue> values;
};

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual Result<> write(const MetricRow& row) = 0;
  virtual Result<> sync() { return {}; }  // all rows are on the disk, or it fails
  virtual Result<> close() = 0;           // the same, and no more rows come
};

// One object per row: the keys, then the values in their order, doubles in full precision, non-finite ones as null.
Result<std::unique_ptr<MetricSink>> make_jsonl_sink(Env& env, const Path& path, bool append);

// Scalars in a new file DIR/events.out.tfevents.<seconds>.<nanoseconds>.<host>.<pid>.<n>, flushed per row
// (tensorboard.cpp draws the format). A resumed run adds a file that begins at `first_step`: what earlier files of the
// folder say of this step and later ones is dropped by readers, as it is from metrics.jsonl.
Result<std::unique_ptr<MetricSink>> make_tensorboard_sink(Env& env, const Path& dir, int64_t first_step);

struct ConsoleOptions {
  int64_t total_steps = 0;   // 0: unknown, then no time left is shown
  int64_t first_step = 0;    // steps done before this process (resume)
  int64_t plain_every = 1;   // without a terminal: a line every so many steps (the last one always)
  double plain_every_s = 0;  // and not more often than this
};

// "step 12/300  2m05s left  reward 0.532  0.41 s/step  kl 0.0012  len 7.1  8,412 tok/s", the most important first, as a
// narrow terminal cuts the line at the right. A terminal has it as a moving line, plain output a line every so often,
// and the log's file a line for every step. Only the numbers that a row has are shown. The time left follows the pace
// of the last minute.
std::unique_ptr<MetricSink> make_console_sink(Env& env, const ConsoleOptions& options);

// The text of that line; seconds_left < 0 leaves it out. For tests and for other places that show progress.
[[nodiscard]] std::string progress_text(const MetricRow& row, int64_t total_steps, double seconds_left);

}  // namespace mortise
