// Chooses the cases for each plugin, runs them through the pool of servers, and collects the report.
#include "conformance/check.h"

#include <fmt/core.h>

#include <fnmatch.h>

#include <algorithm>

#include "conformance/server_pool.h"
#include "conformance/subject.h"
#include "foundation/base/clock.h"
#include "foundation/base/cpus.h"
#include "foundation/base/signal.h"
#include "foundation/base/text.h"
#include "plugin/host/params.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"

namespace mortise::check {
namespace {

constexpr std::string_view kGate = "load.opens";           // where it fails, no plugin can be looked at
constexpr std::string_view kReadable = "static.readable";  // where no ELF header is found, nothing can

Error bad_params(std::string what, std::string_view text) {
  return {ErrorKind::kConfig, std::move(what), "--params " + std::string(text), "write [PLUGIN:]key=value,key=value"};
}

// What the user gave for this plugin, with the defaults of the rest.
Result<Json> params_of(const PluginInfo& plugin, std::span<const GivenParam> given) {
  Json params = Json::object();
  for (const GivenParam& one : given) {
    const ParamInfo* param = plugin.find_param(one.key);
    if (one.plugin.empty() ? param == nullptr : one.plugin != plugin.name) continue;
    params[one.key] = one.text;
    if (param == nullptr) continue;  // refused below, with the nearest name
    auto value = parse_param_text(*param, one.text);
    if (!value.ok()) {
      value.error().where = "--params";
      return std::move(value).error();
    }
    params[one.key] = *std::move(value);
  }
  auto full = validate_params(plugin, params);
  if (full.ok()) return full;
  Error error = std::move(full).error();
  error.where = "--params for plugin " + quote(plugin.name);
  error.next += fmt::format("{}give it as --params '{}:KEY=VALUE'", error.next.empty() ? "" : "; ", plugin.name);
  return error;
}

Result<> check_given(const PackInfo& pack, std::span<const GivenParam> given) {
  std::vector<std::string> names;
  for (const PluginInfo& plugin : pack.plugins) names.push_back(plugin.name);
  for (const GivenParam& one : given) {
    const bool known = std::any_of(pack.plugins.begin(), pack.plugins.end(), [&](const PluginInfo& plugin) {
      return one.plugin.empty() ? plugin.find_param(one.key) != nullptr : plugin.name == one.plugin;
    });
    if (known) continue;
    if (one.plugin.empty())
      return Error{ErrorKind::kConfig, "no plugin of the pack has a parameter " + quote(one.key), "--params",
                   "`mortise plugin describe` lists the parameters"};
    return Error{ErrorKind::kConfig, "the pack has no plugin " + quote(one.plugin), "--params",
                 did_you_mean(one.plugin, names)};
  }
  return {};
}

// The outcomes to be, each with its request; those that need no process are settled already.
class Plan {
 public:
  Plan(const CheckOptions& options, const PackInfo& pack) : options_(options), pack_(pack) {}

  // A file that is no shared object has the one case that says so.
  void make_unreadable() {
    for (const Case* one : all_cases()) {
      if (one->id == kReadable) add(*one, nullptr, Json());
    }
    num_pack_ = outcomes.size();
  }

  Result<> make() {
    for (const Case* one : all_cases()) {
      if (one->kinds == kPack && (one->id == kGate || is_picked(options_.only, "", one->id)))
        add(*one, nullptr, Json());
    }
    num_pack_ = outcomes.size();
    for (const PluginInfo& plugin : pack_.plugins) TRY(add_plugin(plugin));
    return {};
  }

  // Places in `outcomes` that are still to be run, among the pack's cases or among the plugins'.
  [[nodiscard]] std::vector<size_t> open(bool of_pack) const {
    std::vector<size_t> out;
    for (size_t i = of_pack ? 0 : num_pack_; i < (of_pack ? num_pack_ : outcomes.size()); ++i) {
      if (outcomes[i].status.empty()) out.push_back(i);
    }
    return out;
  }

  std::vector<Outcome> outcomes;
  std::vector<Request> requests;

 private:
  Result<> add_plugin(const PluginInfo& plugin) {
    std::vector<const Case*> cases;
    for (const Case* one : all_cases()) {
      if (one->kinds != kPack && is_picked(options_.only, plugin.name, one->id)) cases.push_back(one);
    }
    if (cases.empty()) return {};
    const Json params = TRY(params_of(plugin, options_.params));
    for (const Case* one : cases) add(*one, &plugin, params);
    return {};
  }

  void add(const Case& one, const PluginInfo* plugin, const Json& params) {
    Outcome& outcome = outcomes.emplace_back();
    Request& request = requests.emplace_back();
    outcome.one = &one;
    request.case_id = one.id;
    request.pack = pack_.path;
    request.sha256 = pack_.sha256;
    request.timeout_ms = options_.timeout_ms;
    request.prompts = options_.prompts;
    request.num_samples = options_.num_samples;
    request.host_torch = options_.host_torch;
    if (plugin == nullptr) return;
    outcome.plugin = request.plugin = plugin->name;
    outcome.kind = request.kind = plugin->kind;
    request.params = params;
    if ((one.kinds & kind_bit(plugin->kind)) != 0) return;
    outcome.status = "not_applicable";
    outcome.text = "is not about the kind " + plugin->kind;
  }

  const CheckOptions& options_;
  const PackInfo& pack_;
  size_t num_pack_ = 0;
};

// Why plugins cannot be looked at, or "".
std::string gate_fault(const Plan& plan) {
  for (const Outcome& outcome : plan.outcomes) {
    if (outcome.one->id == kGate && outcome.is_fault()) return "the pack cannot be loaded: " + outcome.text;
  }
  return "";
}

}  // namespace

Result<std::vector<GivenParam>> parse_given_params(std::string_view text) {
  std::vector<GivenParam> out;
  std::string plugin;
  std::string_view rest = text;
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos && is_plugin_name(text.substr(0, colon))) {
    plugin = text.substr(0, colon);
    rest = text.substr(colon + 1);
  }
  std::string piece;
  const auto take = [&]() -> Result<> {
    const size_t equals = piece.find('=');
    if (equals == std::string::npos || equals == 0) return bad_params(quote(piece) + " is not key=value", text);
    out.push_back({plugin, piece.substr(0, equals), piece.substr(equals + 1)});
    piece.clear();
    return {};
  };
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '\\' && i + 1 < rest.size() && rest[i + 1] == ',') {
      piece += rest[++i];
    } else if (rest[i] == ',') {
      TRY(take());
    } else {
      piece += rest[i];
    }
  }
  TRY(take());
  return out;
}

bool is_picked(std::span<const std::string> only, std::string_view plugin, std::string_view case_id) {
  const std::string id(case_id), full = fmt::format("{}:{}", plugin, id);
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& glob) {
           const std::string& subject = glob.find(':') == std::string::npos ? id : full;
           return ::fnmatch(glob.c_str(), subject.c_str(), 0) == 0;
         });
}

size_t CheckReport::count(std::string_view status, std::string_view plugin) const {
  return static_cast<size_t>(std::count_if(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
    return outcome.status == status && outcome.plugin == plugin;
  }));
}
size_t CheckReport::num_faults() const {
  return static_cast<size_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) { return outcome.is_fault(); }));
}

Result<CheckReport> check_pack(const CheckOptions& options) {
  const Stopwatch stopwatch;
  const PackFile file = TRY(PackFile::open(options.pack));
  const PackInfo pack = info_of(file);
  if (!pack.id.empty()) TRY(check_given(pack, options.params));
  Plan plan(options, pack);
  if (read_elf(file.bytes(), file.path()).ok())
    TRY(plan.make());
  else
    plan.make_unreadable();

  const int asked = options.num_jobs > 0 ? options.num_jobs : usable_cpus();
  const int num_jobs = std::clamp(asked, 1, static_cast<int>(std::max<size_t>(plan.outcomes.size(), 1)));
  take_stop_requests();
  ServerPool pool = TRY(ServerPool::start(options.server, num_jobs));
  pool.run(plan.requests, plan.open(true), plan.outcomes);
  const std::string closed = gate_fault(plan);
  if (closed.empty()) {
    pool.run(plan.requests, plan.open(false), plan.outcomes);
  } else {
    for (const size_t i : plan.open(false)) {
      plan.outcomes[i].status = "skipped";
      plan.outcomes[i].text = closed;
    }
  }
  if (stop_requested()) return Error{ErrorKind::kSignal, "stopped before all cases were run", "plugin check", ""};
  CheckReport report{pack.path, pack.id, pack.version, pack.sha256, std::move(plan.outcomes), stopwatch.elapsed_s()};
  // The gate always runs. The report shows it only if it was requested or failed.
  std::erase_if(report.outcomes, [&](const Outcome& outcome) {
    return outcome.one->id == kGate && !outcome.is_fault() && !is_picked(options.only, "", kGate);
  });
  return report;
}

}  // namespace mortise::check
