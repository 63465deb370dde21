// Sinks of the trackers that people look at runs with: W&B, MLflow and Prometheus. Each writes files in the tracker's own
// format, and nothing is sent anywhere: `wandb sync FOLDER`, `mlflow ui --backend-store-uri FOLDER` and node_exporter's
// textfile collector read them.
//
// A resumed run continues the tracker's run: its rows behind the checkpoint are dropped, as from metrics.jsonl, and the
// earlier ones are written again. Thread rule: as MetricSink.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/metrics/sinks.h"

namespace mortise {

struct TrackedRun {
  Path dir;                                     // the run's folder
  std::string project, experiment;              // their names
  Json config;                                  // a table per section
  std::map<std::string, std::string> settings;  // the same flat, for trackers without tables
  std::vector<MetricRow> earlier;               // the rows of a run that is resumed
  bool resumed = false;                         // continues what trackers.json of the run's folder names
};

// W&B's offline folder BASE/wandb/offline-run-TIME-ID, with the records of wandb_internal.proto in run-ID.wandb.
// BASE: the environment's WANDB_DIR, else the run's folder.
Result<std::unique_ptr<MetricSink>> make_wandb_sink(Env& env, const TrackedRun& run);

// MLflow's file store: the environment's MLFLOW_TRACKING_URI if it is a path or file:, else mlruns in the run's folder.
// An Error if it names a server.
Result<std::unique_ptr<MetricSink>> make_mlflow_sink(Env& env, const TrackedRun& run);

// metrics.prom in the run's folder: the newest value of every metric, replaced as a whole at each step.
Result<std::unique_ptr<MetricSink>> make_prometheus_sink(Env& env, const TrackedRun& run);

// The name that a tracker's run has in trackers.json of the run's folder; empty: none, or the run is not resumed.
Result<std::string> tracked_name(Env& env, const TrackedRun& run, const std::string& tracker);
Result<> remember_tracked_name(Env& env, const TrackedRun& run, const std::string& tracker, const std::string& name);

}  // namespace mortise
