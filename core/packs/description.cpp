// Reads and writes pack.toml, and checks it against the rules.
#include "packs/description.h"

#include <fmt/core.h>
#include <mortise/pack.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "foundation/base/text.h"
#include "packs/archive.h"
#include "packs/toml_fields.h"
#include "plugin/pack/note.h"
#include "plugin/pack/semver.h"

namespace mortise {
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kMaxBuilds = 64, kMaxPlugins = 1024, kMaxTests = 256;

Result<toml::table> parse_small_toml(std::string_view text, std::string_view where) {
  if (text.size() > kMaxDescriptionBytes)
    return broken_rule(PackRule::kFirst, "pack.toml has " + format_bytes(text.size()), where, "shorten it");
  auto table = parse_toml(text, where);
  if (table.ok()) return table;
  Error error = std::move(table).error();
  return broken_rule(PackRule::kDescription, std::move(error.what), error.where, std::move(error.next));
}

Result<> read_general(const TomlFields& fields, PackDescription& pack, bool needed) {
  TRY(fields.text("id", pack.id, needed));
  TRY(fields.text("version", pack.version, needed));
  TRY(fields.text("license", pack.license));
  TRY(fields.text("summary", pack.summary));
  TRY(fields.text("homepage", pack.homepage));
  return fields.texts("authors", pack.authors);
}

Result<PackBuild> read_build(const toml::table& table, std::string_view where) {
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only({"file", "sha256", "size", "os", "arch", "cpu", "tier", "torch", "cuda"}));
  PackBuild build;
  TRY(fields.text("file", build.file, true));
  TRY(fields.text("sha256", build.sha256, true));
  TRY(fields.number("size", build.size, true));
  TRY(fields.text("os", build.os, true));
  TRY(fields.text("arch", build.arch, true));
  TRY(fields.text("cpu", build.cpu, true));
  TRY(fields.text("tier", build.tier));
  TRY(fields.text("torch", build.torch));
  TRY(fields.text("cuda", build.cuda));
  if (!build.cuda.empty() && !is_cuda_version(build.cuda))
    return fields.fault("'cuda' is not a version such as 12.4", table.get("cuda"));
  if (!is_archive_path(build.file) || !build.file.starts_with("lib/") || !build.file.ends_with(".so"))
    return broken_rule(PackRule::kBuild, fmt::format("the build {} is not lib/....so", quote(build.file)), where,
                       "build the archive again");
  if (!is_sha256_text(build.sha256)) return fields.fault("'sha256' is not 64 hex digits", table.get("sha256"));
  return build;
}

template <class Value, class Name>
Result<> read_named(const TomlFields& fields, std::string_view key, Value& out, std::initializer_list<Value> values,
                    Name name) {
  std::string text;
  TRY(fields.text(key, text, true));
  const auto* it = std::find_if(values.begin(), values.end(), [&](Value value) { return name(value) == text; });
  if (it == values.end())
    return fields.fault(fmt::format("{} cannot be {}", quote(key), quote(text)), fields.table().get(key));
  out = *it;
  return {};
}

Result<> read_range(const TomlFields& fields, ParamInfo& param) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const toml::node* min = fields.table().get("min");
  const toml::node* max = fields.table().get("max");
  if (min == nullptr && max == nullptr) return {};
  ParamRange range{-kInfinity, kInfinity};
  for (const auto& [node, bound] : {std::pair{min, &range.min}, std::pair{max, &range.max}}) {
    if (node == nullptr) continue;
    const auto value = node->value<double>();
    if (!value || !node->is_number() || std::isnan(*value)) return fields.fault("a bound must be a number", node);
    *bound = *value;
  }
  param.range = range;
  return {};
}

Result<ParamInfo> read_param(const toml::table& table, std::string_view where) {
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only({"name", "type", "default", "min", "max", "choices", "doc"}));
  ParamInfo param;
  TRY(fields.text("name", param.name, true));
  TRY(read_named(fields, "type", param.type, {ParamType::kF64, ParamType::kI64, ParamType::kBool, ParamType::kText},
                 param_type_name));
  if (table.get("default") != nullptr) TRY(fields.text("default", param.default_text.emplace()));
  TRY(read_range(fields, param));
  TRY(fields.texts("choices", param.choices));
  TRY(fields.text("doc", param.doc));
  return param;
}

Result<PluginInfo> read_plugin(const toml::table& table, std::string_view where) {
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only({"kind", "name", "summary", "doc", "flags", "coupling", "requires", "consumes", "param"}));
  PluginInfo plugin;
  TRY(fields.text("kind", plugin.kind, true));
  TRY(fields.text("name", plugin.name, true));
  TRY(fields.text("summary", plugin.summary));
  TRY(fields.text("doc", plugin.doc));
  uint64_t flags = 0;
  TRY(fields.number("flags", flags, true));
  if (flags > UINT32_MAX) return fields.fault("'flags' must have 32 bits", table.get("flags"));
  plugin.flags = static_cast<uint32_t>(flags);
  TRY(read_named(fields, "coupling", plugin.coupling,
                 {Coupling::kToken, Coupling::kRow, Coupling::kGroup, Coupling::kUpdate}, coupling_name));
  TRY(fields.texts("requires", plugin.requires_inputs));
  TRY(fields.texts("consumes", plugin.consumes));
  for (const toml::table* param : TRY(fields.tables("param"))) plugin.params.push_back(TRY(read_param(*param, where)));
  if (!is_plugin_name(plugin.name))
    return fields.fault(quote(plugin.name) + " is not the name of a plugin", table.get("name"));
  return plugin;
}

Result<> read_lists(const TomlFields& fields, PackDescription& pack, std::string_view where) {
  const auto builds = TRY(fields.tables("build")), plugins = TRY(fields.tables("plugin")),
             tests = TRY(fields.tables("test"));
  if (builds.empty() || builds.size() > kMaxBuilds) return fields.fault("a pack has 1 to 64 builds");
  if (plugins.empty() || plugins.size() > kMaxPlugins) return fields.fault("a pack has 1 to 1024 plugins");
  if (tests.size() > kMaxTests) return fields.fault(fmt::format("a pack has at most {} tests", kMaxTests));
  std::set<std::string> files;
  for (const toml::table* build : builds) {
    pack.builds.push_back(TRY(read_build(*build, where)));
    if (!files.insert(pack.builds.back().file).second)
      return broken_rule(PackRule::kBuild, quote(pack.builds.back().file) + " is listed twice", where, "list it once");
  }
  for (const toml::table* plugin : plugins) pack.plugins.push_back(TRY(read_plugin(*plugin, where)));
  for (const toml::table* test : tests) {
    const TomlFields one(*test, where, PackRule::kDescription);
    TRY(one.only({"file"}));
    TRY(one.text("file", pack.tests.emplace_back(), true));
    if (!is_archive_path(pack.tests.back()) || !pack.tests.back().starts_with("tests/"))
      return one.fault("a test is a file in tests/", test);
  }
  return {};
}

void put(std::string& out, std::string_view key, std::string_view value) {
  if (!value.empty()) out += fmt::format("{} = {}\n", key, toml_quoted(value));
}
void put(std::string& out, std::string_view key, const std::vector<std::string>& items) {
  if (!items.empty()) out += fmt::format("{} = {}\n", key, toml_list(items));
}

// As a number of TOML: "1.0", "1e-06", "inf".
std::string toml_number(double value) {
  std::string text = format_f64(value);
  if (text.find_first_of(".einf") == std::string::npos) text += ".0";
  return text;
}

void put_param(std::string& out, const ParamInfo& param) {
  out += "\n[[plugin.param]]\n";
  put(out, "name", param.name);
  put(out, "type", param_type_name(param.type));
  if (param.default_text) out += fmt::format("default = {}\n", toml_quoted(*param.default_text));
  if (param.range && std::isfinite(param.range->min)) out += fmt::format("min = {}\n", toml_number(param.range->min));
  if (param.range && std::isfinite(param.range->max)) out += fmt::format("max = {}\n", toml_number(param.range->max));
  put(out, "choices", param.choices);
  put(out, "doc", param.doc);
}

}  // namespace

bool is_sha256_text(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string PackBuild::platform() const {
  std::string text = fmt::format("{} {}{}", os, arch, cpu == arch ? "" : ", " + cpu);
  if (!torch.empty()) text += ", torch " + torch;
  if (!cuda.empty()) text += ", CUDA " + cuda;
  return text;
}

Result<> check_pack_id(std::string_view id, std::string_view where) {
  if (!is_pack_id(id) || id.size() > 64)
    return broken_rule(PackRule::kId,
                       fmt::format("the id {} is not dotted words of [a-z0-9_-], as in acme.match", quote(id)), where,
                       "choose another id");
  if (id.starts_with("mortise."))
    return broken_rule(PackRule::kId, fmt::format("the id {} is kept for the program's own packs", quote(id)), where,
                       "choose an id of your own, as in acme.match");
  return {};
}

Result<> check_pack_version(std::string_view version, std::string_view where) {
  const bool plain = version.size() <= 64 && std::all_of(version.begin(), version.end(), [](char c) {
                       return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
                              c == '-' || c == '+';
                     });
  if (plain && SemVer::parse(version)) return {};
  return broken_rule(PackRule::kVersion, fmt::format("the version {} is not of the form 1.2.3", quote(version)), where,
                     "correct the version");
}

Result<PackDescription> parse_description(std::string_view text, std::string_view where) {
  const toml::table table = TRY(parse_small_toml(text, where));
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only(
      {"format", "id", "version", "license", "summary", "homepage", "authors", "needs", "build", "plugin", "test"}));
  uint64_t format = 0;
  TRY(fields.number("format", format, true));
  if (format != kFormat)
    return fields.fault(fmt::format("this is format {}; this program reads format 1", format), table.get("format"));
  PackDescription pack;
  TRY(read_general(fields, pack, true));
  TRY(fields.texts("needs", pack.needs));
  TRY(check_pack_id(pack.id, where));
  TRY(check_pack_version(pack.version, where));
  TRY(read_lists(fields, pack, where));
  return pack;
}

Result<PackDescription> parse_source_description(std::string_view text, std::string_view where) {
  const toml::table table = TRY(parse_small_toml(text, where));
  const TomlFields fields(table, where, PackRule::kDescription);
  TRY(fields.only({"id", "version", "license", "summary", "homepage", "authors", "build"}));
  PackDescription pack;
  TRY(read_general(fields, pack, false));
  for (const toml::table* one : TRY(fields.tables("build"))) {
    const TomlFields build(*one, where, PackRule::kDescription);
    TRY(build.only({"file", "cpu", "cuda"}));
    PackBuild& out = pack.builds.emplace_back();
    TRY(build.text("file", out.file, true));
    TRY(build.text("cpu", out.cpu));
    TRY(build.text("cuda", out.cuda));
    if (!out.cuda.empty() && !is_cuda_version(out.cuda))
      return build.fault("'cuda' is not a version such as 12.4", one->get("cuda"));
  }
  return pack;
}

std::string plugins_text(const std::vector<PluginInfo>& plugins) {
  std::string out;
  for (const PluginInfo& plugin : plugins) {
    out += "\n[[plugin]]\n";
    put(out, "kind", plugin.kind);
    put(out, "name", plugin.name);
    put(out, "summary", plugin.summary);
    put(out, "doc", plugin.doc);
    out += fmt::format("flags = {}\n", plugin.flags);
    put(out, "coupling", coupling_name(plugin.coupling));
    put(out, "requires", plugin.requires_inputs);
    put(out, "consumes", plugin.consumes);
    for (const ParamInfo& param : plugin.params) put_param(out, param);
  }
  return out;
}

std::string description_text(const PackDescription& pack) {
  std::string out = "format = 1\n";
  put(out, "id", pack.id);
  put(out, "version", pack.version);
  put(out, "license", pack.license);
  put(out, "summary", pack.summary);
  put(out, "homepage", pack.homepage);
  put(out, "authors", pack.authors);
  put(out, "needs", pack.needs);
  for (const PackBuild& build : pack.builds) {
    out += "\n[[build]]\n";
    put(out, "file", build.file);
    put(out, "sha256", build.sha256);
    out += fmt::format("size = {}\n", build.size);
    put(out, "os", build.os);
    put(out, "arch", build.arch);
    put(out, "cpu", build.cpu);
    put(out, "tier", build.tier);
    put(out, "torch", build.torch);
    put(out, "cuda", build.cuda);
  }
  out += plugins_text(pack.plugins);
  for (const std::string& test : pack.tests) out += fmt::format("\n[[test]]\nfile = {}\n", toml_quoted(test));
  return out;
}

std::vector<std::string> rights_of(const PackDescription& pack) {
  std::vector<std::string> lines;
  for (const PluginInfo& plugin : pack.plugins) {
    const auto has = [&](uint32_t flag) { return (plugin.flags & flag) != 0; };
    const std::string kind = plugin.kind.substr(0, plugin.kind.find('/'));
    const bool is_reward = kind == "mortise.reward" && !has(MORTISE_FLAG_NEEDS_ENGINE);
    std::string line = fmt::format("{} {}: ", kind.substr(std::min(kind.size(), kind.find('.') + 1)), plugin.name);
    if (!is_reward) {
      line += "runs inside the trainer's process, with all your rights";
    } else {
      line += "runs in a worker process; it reads your files";
      if (has(MORTISE_FLAG_NEEDS_NETWORK)) line += ", uses the network";
      if (has(MORTISE_FLAG_NEEDS_FILES)) line += ", writes files";
      if (has(MORTISE_FLAG_NEEDS_PROGRAMS)) line += ", starts programs";
      if (has(MORTISE_FLAG_NEEDS_SANDBOX)) line += ", makes sandboxes";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace mortise
