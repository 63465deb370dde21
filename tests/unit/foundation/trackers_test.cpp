// The files of W&B, MLflow and Prometheus, read back here, and by the trackers' packages if they are there.
#include "foundation/metrics/trackers.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::HasSubstr;

using MakeSink = Result<std::unique_ptr<MetricSink>> (*)(Env&, const TrackedRun&);

TrackedRun run_in(const Path& dir) {
  TrackedRun run;
  run.dir = dir;
  run.project = "a: project";
  run.experiment = "first";
  run.config = {{"actor", {{"optim", {{"lr", 1e-3}}}}}, {"long", std::string(70'000, 'x')}};  // more than two blocks
  run.settings = {{"actor.optim.lr", "0.001"}};
  return run;
}

const MetricRow kFirst = {{{"step", 1}}, {{"actor/pg_loss", 0.5}, {"val-core/a/reward/mean@4", 2.0}}};

MetricRow loss_of(int64_t step, double value) { return {{{"step", step}}, {{"actor/pg_loss", value}}}; }

// Two steps, killed, resumed behind the first.
void write_run(MakeSink make, const Path& dir) {
  TrackedRun run = run_in(dir);
  {
    ASSERT_OK_AND_ASSIGN(const auto sink, make(default_env(), run));
    ASSERT_OK(sink->write(kFirst));
    ASSERT_OK(sink->write(loss_of(2, -77777.0)));
  }
  run.resumed = true;
  run.earlier = {kFirst};
  ASSERT_OK_AND_ASSIGN(const auto sink, make(default_env(), run));
  ASSERT_OK(sink->write(loss_of(2, 22.0)));
  ASSERT_OK(sink->write(loss_of(3, 23.0)));
  ASSERT_OK(sink->close());
}

// The only entry of a folder whose name begins so.
Path only_child(const Path& folder, const std::string& prefix = "") {
  Path found;
  const std::vector<std::string> names = default_env().list_dir(folder).value();
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    EXPECT_TRUE(found.empty()) << name << " next to " << found;
    found = folder / name;
  }
  EXPECT_FALSE(found.empty()) << folder;
  return found;
}

int ask_package(const std::string& tracker, const Path& path) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') return -1;
  return std::system(("'" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                      "/tests/unit/foundation/trackers_oracle.py' " + tracker + " '" + path.string() + "'")
                         .c_str());
}

class Trackers : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("WANDB_DIR");
    ::unsetenv("MLFLOW_TRACKING_URI");
  }
  test::TempDir dir_;
};

TEST_F(Trackers, AResumedRunIsOneRunOfWandb) {
  write_run(make_wandb_sink, dir_.path());
  const Path folder = only_child(dir_.path() / "wandb", "offline-run-");
  const Path file = only_child(folder, "run-");
  const std::string bytes = default_env().read_file(file).value();
  EXPECT_EQ(bytes.substr(0, 7), std::string_view("\x3a\x57\x26\x42\xe1\xbe\x00", 7));
  EXPECT_EQ(bytes.find("-77777"), std::string::npos) << "what lies behind the checkpoint is dropped";
  EXPECT_GT(bytes.size(), 70'000U);
  const int asked = ask_package("wandb", file);
  if (asked < 0) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set";
  EXPECT_EQ(asked, 0);
}

TEST_F(Trackers, AResumedRunIsOneRunOfMlflow) {
  write_run(make_mlflow_sink, dir_.path());
  const Path root = dir_.path() / "mlruns";
  EXPECT_TRUE(default_env().exists(root / "0" / "meta.yaml"));
  Path experiment;
  const std::vector<std::string> experiments = default_env().list_dir(root).value();
  for (const std::string& name : experiments) {
    if (name != "0") experiment = root / name;
  }
  Path run;
  const std::vector<std::string> runs = default_env().list_dir(experiment).value();
  for (const std::string& name : runs) {
    if (name != "meta.yaml") run = experiment / name;
  }
  const std::string lines = default_env().read_file(run / "metrics" / "actor" / "pg_loss").value();
  EXPECT_THAT(lines, HasSubstr(" 0.5 1\n"));
  EXPECT_THAT(lines, HasSubstr(" 22 2\n"));
  EXPECT_EQ(lines.find("-77777"), std::string::npos);
  EXPECT_TRUE(default_env().exists(run / "metrics" / "val-core" / "a" / "reward" / "mean_at_4"));
  EXPECT_THAT(default_env().read_file(run / "meta.yaml").value(), HasSubstr("status: 3"));
  const int asked = ask_package("mlflow", root);
  if (asked < 0) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set";
  EXPECT_EQ(asked, 0);
}

// Its files and folders have the metrics' names. Whichever of "a" and "a/b" came first is kept, in either order.
TEST_F(Trackers, MlflowLeavesOutWhatNeedsAFileAsAFolder) {
  ASSERT_OK_AND_ASSIGN(const auto sink, make_mlflow_sink(default_env(), run_in(dir_.path())));
  ASSERT_OK(sink->write({{{"step", 1}}, {{"x/a", 1.5}, {"y/b/c", 2.5}}}));
  ASSERT_OK(sink->write({{{"step", 2}}, {{"x/a", 3.5}, {"x/a/b", 4.5}, {"y", 5.5}, {"y/b", 6.5}, {"y/bc", 7.5}}}));
  ASSERT_OK(sink->close());
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() / "mlruns")) {
    const std::string path = entry.path().string();
    const size_t at = path.find("/metrics/");
    if (at != std::string::npos && entry.is_regular_file())
      files[path.substr(at + 9)] = default_env().read_file(entry.path()).value();
  }
  ASSERT_EQ(files.size(), 3U);
  EXPECT_THAT(files["x/a"], HasSubstr(" 3.5 2\n"));
  EXPECT_THAT(files["y/b/c"], HasSubstr(" 2.5 1\n"));
  EXPECT_THAT(files["y/bc"], HasSubstr(" 7.5 2\n"));
}

TEST_F(Trackers, AServerOfMlflowIsRefused) {
  ::setenv("MLFLOW_TRACKING_URI", "http://tracker:5000", 1);
  const auto sink = make_mlflow_sink(default_env(), run_in(dir_.path()));
  ::unsetenv("MLFLOW_TRACKING_URI");
  ASSERT_FALSE(sink.ok());
  EXPECT_THAT(sink.error().to_string(), HasSubstr("writes to no server"));
}

TEST_F(Trackers, PrometheusHasTheNewestValueOfEachMetric) {
  write_run(make_prometheus_sink, dir_.path());
  ASSERT_OK_AND_ASSIGN(const auto sink, make_prometheus_sink(default_env(), run_in(dir_.path())));
  ASSERT_OK(sink->write({{{"step", 7}}, {{"a/b", 1.5}, {"a_b", std::nan("")}, {"q\"uote", INFINITY}}}));
  ASSERT_OK(sink->write({{{"step", 8}}, {{"a/b", 2.5}}}));
  ASSERT_OK(sink->close());
  const std::string labels = R"(project="a: project",experiment="first")";
  EXPECT_EQ(dir_.read("metrics.prom"), "# TYPE mortise_step gauge\nmortise_step{" + labels +
                                           "} 8\n"
                                           "# TYPE mortise_a_b gauge\n"
                                           "mortise_a_b{" +
                                           labels + ",metric=\"a/b\"} 2.5\nmortise_a_b{" + labels +
                                           ",metric=\"a_b\"} NaN\n"
                                           "# TYPE mortise_q_uote gauge\nmortise_q_uote{" +
                                           labels + ",metric=\"q\\\"uote\"} +Inf\n");
}

TEST_F(Trackers, RowsWaitWhileTheDiskIsFull) {
  for (const MakeSink make : {&make_wandb_sink, &make_mlflow_sink, &make_prometheus_sink}) {
    const test::TempDir dir;
    test::FaultEnv env(default_env());
    TrackedRun run = run_in(dir.path());
    run.config.erase("long");
    ASSERT_OK_AND_ASSIGN(const auto sink, make(env, run));
    ASSERT_OK(sink->write(kFirst));
    env.disk_full_after(3);
    EXPECT_FALSE(sink->write(loss_of(2, 22.0)).ok());
    env.heal();
    ASSERT_OK(sink->write(loss_of(3, 23.0)));
    ASSERT_OK(sink->close());
    if (make == &make_mlflow_sink) {
      EXPECT_LE(ask_package("mlflow", dir.path() / "mlruns"), 0) << "each line is whole, and there once";
    } else if (make == &make_wandb_sink) {
      const Path file = only_child(only_child(dir.path() / "wandb", "offline-run-"), "run-");
      EXPECT_THAT(default_env().read_file(file).value(), HasSubstr("22.0"));
    }
  }
}

}  // namespace
}  // namespace mortise
