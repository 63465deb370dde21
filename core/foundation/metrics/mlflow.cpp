// MLflow's file store. See trackers.h.
//
//   ROOT/EXPERIMENT/meta.yaml       name, id and state of an experiment; EXPERIMENT is 0 or a number of 18 digits
//   ROOT/EXPERIMENT/RUN/meta.yaml   the same of a run; RUN is 32 hex digits
//   .../params/KEY, tags/KEY        a value       .../metrics/NAME   lines "milliseconds value step"
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/metrics/trackers.h"

namespace mortise {
namespace {

constexpr size_t kMaxParamBytes = 6000;
constexpr int kRunning = 1, kFinished = 3;

std::string yaml_text(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

// Names may have letters, digits and "_-. /:". verl writes "_at_" for '@'. Slashes are folders.
std::string stored_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool fits = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      std::string_view("_-. /").find(c) != std::string_view::npos;
    if (c == '@')
      out += "_at_";
    else
      out += fits ? c : '_';
  }
  return out;
}

// A name that would leave its folder, or be one itself, is no file.
bool is_file_name(const std::string& name) {
  const Path path(name);
  return !name.empty() && path.is_relative() && path.lexically_normal() == path && name.find("..") == std::string::npos;
}

std::string metric_value(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return format_f64(value);
}

std::string hex_id(Env& env, size_t num_bytes) {
  std::vector<std::byte> random(num_bytes);
  env.random_bytes(random);
  std::string id;
  for (const std::byte one : random) id += fmt::format("{:02x}", static_cast<unsigned>(one));
  return id;
}

int64_t now_ms(Env& env) { return env.wall_time_ns() / 1'000'000; }

Path whole_path(const Path& path) { return std::filesystem::absolute(path).lexically_normal(); }

Result<Path> root_of(const TrackedRun& run) {
  const char* const given = std::getenv("MLFLOW_TRACKING_URI");
  std::string uri = given == nullptr ? "" : given;
  if (uri.empty()) return whole_path(run.dir / "mlruns");
  for (const std::string_view scheme : {"file://", "file:"}) {
    if (!uri.starts_with(scheme)) continue;
    uri = uri.substr(scheme.size());
    break;
  }
  if (uri.find("://") == std::string::npos) return whole_path(uri);
  return Error{ErrorKind::kConfig,
               fmt::format("MLFLOW_TRACKING_URI is {}, and Mortise writes to no server", quote(uri)), "trainer.logger",
               "set it to a folder, or unset it: the run's folder then has mlruns"};
}

std::string experiment_yaml(const Path& folder, const std::string& id, const std::string& name, int64_t now) {
  return fmt::format(
      "artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\nlifecycle_stage: active\n"
      "name: {}\n",
      yaml_text("file://" + folder.string()), now, id, now, yaml_text(name));
}

Result<> make_experiment(Env& env, const Path& root, const std::string& id, const std::string& name) {
  TRY(env.create_dirs(root / id));
  return write_file_atomic(env, root / id / "meta.yaml", experiment_yaml(root / id, id, name, now_ms(env)));
}

// The folder of the experiment with this name, which is made if there is none.
Result<std::string> find_experiment(Env& env, const Path& root, const std::string& name) {
  TRY(env.create_dirs(root));
  for (const std::string& id : TRY(env.list_dir(root))) {
    const auto text = env.read_file(root / id / "meta.yaml");
    if (!text.ok()) continue;
    for (const std::string& written : {yaml_text(name), name}) {
      if (text->find(fmt::format("\nname: {}\n", written)) != std::string::npos) return id;
    }
  }
  if (!env.exists(root / "0")) TRY(make_experiment(env, root, "0", "Default"));
  if (name == "Default") return std::string("0");
  std::array<std::byte, 8> random{};
  env.random_bytes(random);
  uint64_t number = 0;
  for (const std::byte one : random) number = number * 256 + static_cast<uint64_t>(one);
  const std::string id = std::to_string(100'000'000'000'000'000 + number % 900'000'000'000'000'000);
  TRY(make_experiment(env, root, id, name));
  return id;
}

class MlflowSink final : public MetricSink {
 public:
  MlflowSink(Env& env, Path root, std::string experiment_id, std::string id, std::string name)
      : env_(&env),
        folder_(root / experiment_id / id),
        experiment_id_(std::move(experiment_id)),
        id_(std::move(id)),
        name_(std::move(name)) {}

  Result<> begin(const TrackedRun& run) {
    start_ms_ = now_ms(*env_);
    TRY(remove_tree(*env_, folder_ / "metrics"));  // the process before this one may have left some
    for (const char* part : {"metrics", "params", "tags", "artifacts"}) TRY(env_->create_dirs(folder_ / part));
    for (const auto& [key, value] : run.settings) {
      const std::string name = stored_name(key);
      if (is_file_name(name) && value.size() <= kMaxParamBytes)
        TRY(write_file(*env_, folder_ / "params" / name, value));
    }
    const std::map<std::string, std::string> tags = {
        {"mlflow.runName", name_}, {"mlflow.source.name", "mortise"}, {"mlflow.source.type", "LOCAL"}};
    for (const auto& [key, value] : tags) TRY(write_file(*env_, folder_ / "tags" / key, value));
    TRY(write_meta(kRunning));
    for (const MetricRow& row : run.earlier) add_row(row);
    return flush();
  }

  Result<> write(const MetricRow& row) override {
    add_row(row);
    return flush();
  }
  Result<> sync() override { return flush(); }
  Result<> close() override {
    TRY(flush());
    return write_meta(kFinished);
  }

 private:
  void add_row(const MetricRow& row) {
    if (row.keys.empty()) return;
    const int64_t now = now_ms(*env_);
    for (const MetricValue& metric : row.values) {
      const std::string name = stored_name(metric.name);
      if (is_file_name(name) && has_place(name))
        unwritten_[name] += fmt::format("{} {} {}\n", now, metric_value(metric.value), row.keys.front().second);
    }
  }

  // The path of one metric must not be a folder of another one, as "reward" is of "reward/a". The first one is kept.
  bool has_place(const std::string& name) {
    if (names_.contains(name)) return true;
    const auto below = names_.lower_bound(name + "/");
    bool is_free = below == names_.end() || !below->starts_with(name + "/");
    for (size_t slash = name.find('/'); slash != std::string::npos && is_free; slash = name.find('/', slash + 1))
      is_free = !names_.contains(name.substr(0, slash));
    if (is_free) return names_.insert(name), true;
    if (left_out_.insert(name).second)
      log_warn(
          fmt::format("MLflow: {} is left out, because the name of another metric is a part of its path", quote(name)));
    return false;
  }

  // Each file that is whole is written once; the others wait for the next call.
  Result<> flush() {
    while (!unwritten_.empty()) {
      const auto& [name, lines] = *unwritten_.begin();
      TRY(append(folder_ / "metrics" / name, name, lines));
      unwritten_.erase(unwritten_.begin());
    }
    return {};
  }

  Result<> append(const Path& path, const std::string& name, const std::string& lines) {
    TRY(env_->create_dirs(path.parent_path()));
    if (torn_ == name) {  // its last line may be a part of one
      std::string whole = TRY(env_->read_file(path));
      whole.resize(whole.rfind('\n') == std::string::npos ? 0 : whole.rfind('\n') + 1);
      TRY(write_file_atomic(*env_, path, whole + lines));
      torn_.clear();
      return {};
    }
    auto file = TRY(env_->open_for_write(path, WriteMode::kAppend));
    const Result<> written = file->append_text(lines);
    if (!written.ok()) torn_ = name;
    TRY(written);
    return file->close();
  }

  Result<> write_meta(int status) {
    const std::string end = status == kRunning ? "null" : std::to_string(now_ms(*env_));
    const std::string text = fmt::format(
        "artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\nlifecycle_stage: active\n"
        "run_id: {}\nrun_name: {}\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\n"
        "tags: []\nuser_id: ''\n",
        yaml_text("file://" + (folder_ / "artifacts").string()), end, experiment_id_, yaml_text(id_), yaml_text(name_),
        start_ms_, status);
    return write_file_atomic(*env_, folder_ / "meta.yaml", text);
  }

  Env* env_;
  Path folder_;
  std::string experiment_id_, id_, name_;
  int64_t start_ms_ = 0;
  std::map<std::string, std::string> unwritten_;  // lines by metric
  std::set<std::string> names_, left_out_;        // metrics with a file, and those without
  std::string torn_;                              // the metric whose file may end in a part of a line
};

}  // namespace

Result<std::unique_ptr<MetricSink>> make_mlflow_sink(Env& env, const TrackedRun& run) {
  const Path root = TRY(root_of(run));
  const std::string experiment = TRY(find_experiment(env, root, run.project));
  std::string id = TRY(tracked_name(env, run, "mlflow"));
  if (id.empty()) {
    id = hex_id(env, 16);
    TRY(remember_tracked_name(env, run, "mlflow", id));
  }
  auto sink = std::make_unique<MlflowSink>(env, root, experiment, id, run.experiment);
  TRY(sink->begin(run));
  return std::unique_ptr<MetricSink>(std::move(sink));
}

}  // namespace mortise
