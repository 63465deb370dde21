// What `mortise plugin list` and `describe` print, as tables and as JSON.
#include "plugin_show.h"

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <tuple>

#include "foundation/base/text.h"
#include "mortise/pack.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/params.h"

namespace mortise {
namespace {

// Left-aligned columns, two spaces apart.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::cout << line << "\n";
  }
}

}  // namespace

Json list_json(const PluginRegistry& registry, const std::string& kind) {
  Json out = {
      {"plugins", Json::array()}, {"rejected", Json::array()}, {"searched", Json::array()}, {"kinds", Json::array()}};
  for (const KindInfo& one : kKinds)
    out["kinds"].push_back({{"kind", one.name}, {"title", one.title}, {"chosen_by", one.chosen_by}});
  for (const Candidate& candidate : registry.candidates()) {
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (!kind.empty() && plugin.kind != kind) continue;
      Json row = {{"kind", short_kind(plugin.kind)}, {"name", plugin.name},
                  {"pack", candidate.info.id},       {"version", candidate.info.version},
                  {"tier", candidate.info.tier},     {"origin", pack_origin_name(candidate.origin)},
                  {"path", candidate.info.path},     {"sha256", candidate.info.sha256},
                  {"summary", plugin.summary},       {"experimental", (plugin.flags & MORTISE_FLAG_EXPERIMENTAL) != 0},
                  {"devices", plugin.devices}};
      if (!candidate.hidden_by.empty()) row["hidden_by"] = candidate.hidden_by;
      out["plugins"].push_back(std::move(row));
    }
  }
  for (const RejectedCandidate& rejected : registry.rejected()) {
    out["rejected"].push_back(
        {{"path", rejected.path}, {"reason", rejected.reason.what}, {"next", rejected.reason.next}});
  }
  for (const SearchedDir& dir : registry.searched()) {
    out["searched"].push_back({{"path", dir.path}, {"origin", pack_origin_name(dir.origin)}, {"exists", dir.exists}});
  }
  return out;
}

void print_list(const Json& list) {
  std::vector<std::vector<std::string>> rows = {
      {"KIND", "NAME", "PACK", "VERSION", "TIER", "FROM", "DEVICES", "SUMMARY"}};
  std::vector<std::vector<std::string>> plugins;
  for (const Json& p : list["plugins"]) {
    if (p.contains("hidden_by")) continue;
    const auto devices = p["devices"].get<std::vector<std::string>>();
    plugins.push_back({p["kind"], p["name"], p["pack"], p["version"], p["tier"], p["origin"],
                       devices.empty() ? "-" : join(devices, ", "), p["summary"]});
  }
  std::stable_sort(plugins.begin(), plugins.end(),
                   [](const auto& a, const auto& b) { return std::tie(a[0], a[1]) < std::tie(b[0], b[1]); });
  rows.insert(rows.end(), plugins.begin(), plugins.end());
  if (plugins.empty()) {
    std::cout << "no plugins\n";
  } else {
    print_table(rows);
  }
  std::set<std::string> packs;
  for (const Json& p : list["plugins"]) {
    std::string line = fmt::format("  {}  {} {}", p["path"].get<std::string>(), p["pack"].get<std::string>(),
                                   p["version"].get<std::string>());
    if (p.contains("hidden_by"))
      line += ", not used: the same version was found in " + p["hidden_by"].get<std::string>();
    packs.insert(std::move(line));
  }
  if (!packs.empty()) std::cout << "\npacks:\n";
  for (const std::string& pack : packs) std::cout << pack << "\n";
  if (!list["rejected"].empty()) std::cout << "\nnot used:\n";
  for (const Json& r : list["rejected"]) {
    const std::string next = r["next"];
    std::cout << "  " << r["path"].get<std::string>() << ": " << r["reason"].get<std::string>()
              << (next.empty() ? "" : "; " + next) << "\n";
  }
  std::cout << "\nsearched:\n";
  for (const Json& s : list["searched"]) {
    std::cout << "  " << s["path"].get<std::string>() << " (" << s["origin"].get<std::string>()
              << (s["exists"].get<bool>() ? ")" : ", does not exist)") << "\n";
  }
}

Json param_json(const ParamInfo& param) {
  Json out = {{"name", param.name},
              {"type", param_type_name(param.type)},
              {"default", param.default_text ? Json(*param.default_text) : Json()},
              {"doc", param.doc}};
  if (param.range) {
    out["min"] = param.range->min;  // an open end is null
    out["max"] = param.range->max;
    out["allowed"] = range_text(param);  // for people: "above 0 and at most 1"
  }
  if (!param.choices.empty()) out["choices"] = param.choices;
  if (param.role != ParamRole::kPlain) out["role"] = param_role_name(param.role);
  return out;
}

Json describe_json(const PluginRef& ref) {
  const PluginInfo& plugin = *ref.plugin;
  Json out = {{"kind", short_kind(plugin.kind)},
              {"name", plugin.name},
              {"pack", ref.pack->id},
              {"version", ref.pack->version},
              {"tier", ref.pack->tier},
              {"origin", pack_origin_name(ref.candidate->origin)},
              {"path", ref.pack->path},
              {"sha256", ref.pack->sha256},
              {"summary", plugin.summary},
              {"doc", plugin.doc},
              {"coupling", coupling_name(plugin.coupling)},
              {"requires", plugin.requires_inputs},
              {"consumes", plugin.consumes},
              {"update_metrics", plugin.update_metrics},
              {"devices", plugin.devices},
              {"experimental", (plugin.flags & MORTISE_FLAG_EXPERIMENTAL) != 0},
              {"concurrent", (plugin.flags & MORTISE_FLAG_CONCURRENT) != 0},
              {"needs_network", (plugin.flags & MORTISE_FLAG_NEEDS_NETWORK) != 0},
              {"needs_programs", (plugin.flags & MORTISE_FLAG_NEEDS_PROGRAMS) != 0},
              {"needs_files", (plugin.flags & MORTISE_FLAG_NEEDS_FILES) != 0},
              {"compares_group", (plugin.flags & MORTISE_FLAG_COMPARES_GROUP) != 0},
              {"surrogate_gradient", (plugin.flags & MORTISE_FLAG_SURROGATE_GRADIENT) != 0},
              {"needs_sandbox", (plugin.flags & MORTISE_FLAG_NEEDS_SANDBOX) != 0},
              {"token_rewards", (plugin.flags & MORTISE_FLAG_TOKEN_REWARDS) != 0},
              {"needs_engine", (plugin.flags & MORTISE_FLAG_NEEDS_ENGINE) != 0},
              {"writes_all", (plugin.flags & MORTISE_FLAG_WRITES_ALL) != 0},
              {"normalizes_rewards", (plugin.flags & MORTISE_FLAG_NORMALIZES_REWARDS) != 0},
              {"tells_reads", (plugin.flags & MORTISE_FLAG_TELLS_READS) != 0},
              {"params", Json::array()}};
  for (const ParamInfo& param : plugin.params) out["params"].push_back(param_json(param));
  return out;
}

void print_description(const PluginRef& ref) {
  const PluginInfo& plugin = *ref.plugin;
  std::cout << short_kind(plugin.kind) << " " << plugin.name << ": " << plugin.summary << "\n";
  if (!plugin.doc.empty()) std::cout << "\n  " << plugin.doc << "\n";
  std::cout << "\n  pack      " << ref.pack->id << " " << ref.pack->version << ", " << ref.pack->tier << ", "
            << pack_origin_name(ref.candidate->origin) << "\n  file      " << ref.pack->path << " ("
            << ref.pack->short_hash() << ")\n";
  if (const KindInfo* const kind = find_kind(plugin.kind); kind != nullptr && kind->has_coupling)
    std::cout << "  coupling  " << coupling_name(plugin.coupling) << "\n";
  if (!plugin.requires_inputs.empty()) std::cout << "  requires  " << join(plugin.requires_inputs, ", ") << "\n";
  if (!plugin.consumes.empty()) std::cout << "  consumes  " << join(plugin.consumes, ", ") << "\n";
  if (!plugin.update_metrics.empty()) std::cout << "  updates   " << join(plugin.update_metrics, ", ") << "\n";
  if (!plugin.devices.empty()) std::cout << "  devices   " << join(plugin.devices, ", ") << "\n";
  if ((plugin.flags & MORTISE_FLAG_TOKEN_REWARDS) != 0) std::cout << "  rewards single tokens too\n";
  if ((plugin.flags & MORTISE_FLAG_EXPERIMENTAL) != 0)
    std::cout << "  experimental: there are no published outputs to compare with\n";
  if ((plugin.flags & MORTISE_FLAG_NEEDS_ENGINE) != 0)
    std::cout << "  runs in the engine's own process: it needs a service that workers do not have\n";
  if (plugin.params.empty()) {
    std::cout << "\n  no parameters\n";
    return;
  }
  std::cout << "\n";
  std::vector<std::vector<std::string>> rows = {{"  PARAMETER", "TYPE", "DEFAULT", "RANGE", "MEANING"}};
  for (const ParamInfo& param : plugin.params) {
    const bool is_plain = param.role == ParamRole::kPlain;  // else a text, and its role says more
    rows.push_back({"  " + param.name,
                    std::string(is_plain ? param_type_name(param.type) : param_role_name(param.role)),
                    param.default_text.value_or("(mandatory)"), range_text(param), param.doc});
  }
  print_table(rows);
}

}  // namespace mortise
