// See ui_runs.h.
#include "ui_runs.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/reader.h"
#include "config/check.h"
#include "foundation/base/text.h"
#include "hub/config_names.h"
#include "model/adapters/lora_config.h"
#include "report/page.h"
#include "sampled_folder.h"
#include "serve/api/call_fields.h"
#include "served_folder.h"
#include "train/resume/checkpointing.h"
#include "train/run/policy_folder.h"

namespace mortise {
namespace {

constexpr const char* kInitial = "initial model";

bool is_model(Env& env, const Path& folder) {
  return env.exists(folder / "config.json") || is_adapter_folder(env, folder);
}

std::string last_name(const Path& folder) {
  const Path normal = folder.lexically_normal();
  return (normal.filename().empty() ? normal.parent_path() : normal).filename().string();
}

// What changes when somebody writes the file again.
std::string stamp_of(Env& env, const Path& file) {
  const auto info = env.info(file);
  return info.ok() ? fmt::format("{}.{}", info->size_bytes, info->modified_ns) : "none";
}

// The names that latest and best have.
std::string named_checkpoint(Env& env, const Path& run, std::string_view file) {
  const auto text = env.read_file(run / file);
  return text.ok() ? std::string(trim(*text)) : std::string();
}

bool has_chat_template(Env& env, const RunConfig& config) {
  if (config.model.custom_chat_template) return true;
  const auto folder = PolicyFolder::load(env, config);
  return folder.ok() && !folder->chat_templates.empty();
}

}  // namespace

Result<std::unique_ptr<UiRuns>> UiRuns::create(Env& env, const std::vector<std::string>& folders,
                                               std::vector<std::string> overrides, const ComputeDevice& device) {
  std::unique_ptr<UiRuns> out(new UiRuns(env, std::move(overrides), device));
  for (const std::string& folder : folders) {
    if (env.exists(Path(folder) / "metrics.jsonl"))
      out->runs_.emplace_back(folder);
    else if (is_model(env, folder))
      out->models_.emplace_back(folder);
    else
      return Error{ErrorKind::kConfig,
                   "this is neither the folder of a run (no metrics.jsonl) nor of a model (no config.json)", folder,
                   "name the folder of a run, such as runs/quickstart, or a Hugging Face folder"};
  }
  return out;
}

Result<std::string> UiRuns::report_page() {
  if (runs_.empty()) return playground_page();
  std::vector<ReportRun> runs;
  for (const Path& folder : runs_) runs.push_back(TRY(read_report_run(*env_, folder, 0)));
  return live_report_page(runs);
}

Result<std::string> UiRuns::playground_page() { return mortise::playground_page(); }

Result<std::string> UiRuns::rows(int64_t run, int64_t step) {
  if (run < 0 || run >= static_cast<int64_t>(runs_.size())) return bad_field("run", "is not one of this server's runs");
  const Path& folder = runs_[static_cast<size_t>(run)];
  const auto files = find_completion_files(*env_, folder, run_settings(*env_, folder));
  const auto file = files.find(step);
  if (file == files.end()) return bad_field("step", fmt::format("{} has no completions", step));
  const ShownRows shown = TRY(read_shown_rows(*env_, file->second));
  Json answer = {{"rows", shown.rows}};
  if (shown.damaged.count > 0) answer["damaged"] = describe(shown.damaged);
  return dump_json(answer);
}

EventHub::Source UiRuns::open_events(const std::string& place) {
  const auto follower = std::make_shared<RunFollower>(*env_, runs_, place, findings_);
  return [follower] {
    std::vector<UiEvent> events;
    for (RunNews& news : follower->read())
      events.push_back({std::move(news.name), std::move(news.place), dump_json(news.data)});
    return events;
  };
}

Result<LoadedConfig> UiRuns::settings(int run, const Path& model) const {
  std::vector<std::string> own = {"model.path=" + dump_json(Json(model.string()))};
  Path file;
  if (run >= 0) {
    file = runs_[static_cast<size_t>(run)] / kSettingsFile;
    own.insert(own.end(), {"model.lora_rank=0", "model.lora_adapter_path=null"});  // an adapter's folder names its base
  }
  own.insert(own.end(), overrides_.begin(), overrides_.end());
  return load_config(*env_, file, own);
}

// The initial model and every checkpoint, in the order of the run.
void UiRuns::add_checkpoints(size_t run, std::vector<Choice>& out) const {
  const Path& folder = runs_[run];
  const std::string prefix = runs_.size() > 1 ? last_name(folder) + "/" : "";
  const auto index = static_cast<int>(run);
  const auto loaded = load_config(*env_, folder / kSettingsFile, {});
  const Path initial = loaded.ok() ? sampled_folder(loaded->config.model) : "";
  if (loaded.ok() && is_model(*env_, initial)) out.push_back({prefix + "initial", prefix + kInitial, initial, index});
  const auto found = list_checkpoints(*env_, folder);
  if (!found.ok()) return;
  const std::string latest = named_checkpoint(*env_, folder, kLatestFile),
                    best = named_checkpoint(*env_, folder, kBestFile);
  for (auto at = found->rbegin(); at != found->rend(); ++at) {
    const std::string name = at->path.filename().string();
    if (!env_->exists(at->path / "huggingface")) continue;
    const std::string marks = std::string(name == best ? " (best)" : "") + (name == latest ? " (newest)" : "");
    out.push_back({prefix + name, prefix + name + marks, at->path / "huggingface", index});
  }
}

std::vector<UiRuns::Choice> UiRuns::choices() const {
  std::vector<Choice> out;
  for (size_t run = 0; run < runs_.size(); ++run) add_checkpoints(run, out);
  for (const Path& folder : models_) out.push_back({last_name(folder), last_name(folder), folder, -1});
  for (size_t i = 0; i < out.size(); ++i) {  // two folders of one name
    const auto same = std::count_if(out.begin(), out.begin() + static_cast<ptrdiff_t>(i),
                                    [&](const Choice& other) { return other.id == out[i].id; });
    if (same == 0) continue;
    out[i].id = out[i].title = out[i].folder.string();
  }
  return out;
}

Result<Json> UiRuns::models() {
  Json data = Json::array(), runs = Json::array();
  std::map<int, bool> has_template;  // by run: all its checkpoints are alike
  for (const Choice& choice : choices()) {
    const auto loaded = settings(choice.run, choice.folder);
    const bool is_known = choice.run >= 0 && has_template.contains(choice.run);
    const bool chats = is_known ? has_template[choice.run] : loaded.ok() && has_chat_template(*env_, loaded->config);
    if (choice.run >= 0) has_template[choice.run] = chats;
    data.push_back({{"id", choice.id},
                    {"object", "model"},
                    {"owned_by", "mortise"},
                    {"title", choice.title},
                    {"run", choice.run < 0 ? Json() : Json(choice.run)},
                    {"has_chat_template", chats}});
  }
  for (const Path& folder : runs_) {
    const auto loaded = load_config(*env_, folder / kSettingsFile, {});
    Json run = {{"name", last_name(folder)}, {"has_rewards", false}, {"data_files", Json::array()}};
    if (loaded.ok()) {
      const RunConfig& config = loaded->config;
      run["response_length"] = response_length(config);
      run["has_rewards"] = !config.reward.empty();
      run["data_files"] = data_files_of(*env_, config);
      run["system_prompt"] = config.data.system_prompt.value_or("");
      run["chat_template_kwargs"] = config.data.apply_chat_template_kwargs;
    }
    runs.push_back(std::move(run));
  }
  return Json{{"object", "list"}, {"data", std::move(data)}, {"runs", std::move(runs)}};
}

// A new run in the same folder has the same names.
std::string UiRuns::version_of(const std::string& name) {
  const std::vector<Choice> all = choices();
  const auto found = std::ranges::find(all, name, &Choice::id);
  if (found == all.end()) return "";
  std::vector<Path> files = {found->folder / "config.json", found->folder / kAdapterConfigFile,
                             found->folder.parent_path() / kManifestFile};
  if (found->run >= 0) files.push_back(runs_[static_cast<size_t>(found->run)] / kSettingsFile);
  std::string version = found->folder.string();
  for (const Path& file : files) version += " " + stamp_of(*env_, file);
  return version;
}

Result<std::unique_ptr<LoadedModel>> UiRuns::load_model(const std::string& name) {
  const std::vector<Choice> all = choices();
  const auto found = std::ranges::find(all, name, &Choice::id);
  if (found == all.end())
    return Error{ErrorKind::kConfig, "there is no model " + quote(name), "", "GET /v1/models lists the models"};
  const LoadedConfig loaded = TRY(settings(found->run, found->folder));
  auto folder = TRY(ServedFolder::load(*env_, loaded.config, device_, name, ""));
  return std::unique_ptr<LoadedModel>(std::make_unique<PlaygroundModel>(std::move(folder)));
}

Result<RunScorer*> UiRuns::scorer(const Json& body) {
  CallFields fields(body);
  const auto run = static_cast<size_t>(TRY(fields.integer("run", 0, 0, int64_t{1} << 30)));
  if (run >= runs_.size()) return bad_field("run", "is not one of this server's runs", "only runs have rewards");
  auto& [version, scorer] = scorers_[run];
  std::string newest = stamp_of(*env_, runs_[run] / kSettingsFile);
  if (scorer && version == newest) return scorer.get();
  scorer = nullptr;  // its workers end before others start
  version = std::move(newest);
  for (const Choice& choice : choices()) {
    if (choice.run != static_cast<int>(run)) continue;
    LoadedConfig loaded = TRY(settings(choice.run, choice.folder));
    const Path lock = runs_[run] / kPackLockFile;
    TRY(resolve_hub_names(*env_, loaded, {&lock, 1}));
    scorer = TRY(RunScorer::create(*env_, std::move(loaded)));
    return scorer.get();
  }
  return Error{ErrorKind::kConfig, "the run has no checkpoint yet, and its first model is not here",
               runs_[run].string(), "wait until it has saved one"};
}

Result<Json> UiRuns::data_row(const Json& body) {
  RunScorer* const found = TRY(scorer(body));
  return found->data_row(body);
}

Result<Json> UiRuns::score(const Json& body) {
  RunScorer* const found = TRY(scorer(body));
  return found->score(body);
}

}  // namespace mortise
