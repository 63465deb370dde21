// trackers.json of a run's folder: which run of a tracker it is. See trackers.h.
#include "foundation/metrics/trackers.h"

namespace mortise {

namespace {

Result<Json> read_names(Env& env, const TrackedRun& run) {
  const Path path = run.dir / "trackers.json";
  if (!env.exists(path)) return Json::object();
  const Json names = TRY(read_json_file(env, path));
  if (names.is_object()) return names;
  return Error{ErrorKind::kData, "the file is not a JSON object", path.string(), "delete it: trackers begin a new run"};
}

}  // namespace

Result<std::string> tracked_name(Env& env, const TrackedRun& run, const std::string& tracker) {
  if (!run.resumed) return std::string();
  const Json names = TRY(read_names(env, run));
  const Json* const name = json_find(names, tracker);
  if (name == nullptr || !name->is_string()) return std::string();
  const auto text = name->get<std::string>();
  return text.find('/') == std::string::npos ? text : std::string();
}

Result<> remember_tracked_name(Env& env, const TrackedRun& run, const std::string& tracker, const std::string& name) {
  Json names = TRY(read_names(env, run));
  names[tracker] = name;
  return write_file_atomic(env, run.dir / "trackers.json", dump_json(names) + "\n");
}

}  // namespace mortise
