// Static cases: what the file shows without running its code.
#include <fmt/core.h>

#include <algorithm>

#include "conformance/subject.h"
#include "foundation/base/text.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"

namespace mortise::check {
namespace {

struct File {
  PackFile file;
  ElfSummary elf;
};

Result<File> read_file(const Subject& subject) {
  PackFile file = TRY(PackFile::open(subject.request().pack));
  auto elf = read_elf(file.bytes(), file.path());
  if (!elf.ok()) return not_applicable("the file cannot be read; see static.readable");
  return File{std::move(file), *std::move(elf)};
}

Result<PackInfo> read_info(const Subject& subject) {
  if (subject.pack().id.empty()) return not_applicable("its note cannot be read; see static.note");
  return subject.pack();
}

Result<> readable(Subject& subject) {
  const PackFile file = TRY(PackFile::open(subject.request().pack));
  TRY(read_elf(file.bytes(), file.path()));
  TRY(check_section_headers(file.bytes(), file.path()));
  return {};
}

Result<> note(Subject& subject) {
  const File f = TRY(read_file(subject));
  TRY(audit_major(f.elf, f.file.path()));
  const std::string_view text = TRY(find_note(f.elf, f.file.path()));
  TRY(parse_note(text, f.file.path()));
  return {};
}

Result<> one_export(Subject& subject) {
  const File f = TRY(read_file(subject));
  const auto is_own = [](const std::string& name) { return !major_of_symbol(name).empty(); };
  if (!f.elf.exports.empty() && std::ranges::all_of(f.elf.exports, is_own)) return {};
  std::vector<std::string> names;
  for (const std::string& name : f.elf.exports) {
    if (names.size() < 5) names.push_back(quote(name));
  }
  return broken(fmt::format("exports {} instead of {} alone; link it with the SDK's version script",
                            (names.empty() ? "nothing" : join(names, ", ")), quote(kPackSymbol)));
}

Result<> needs(Subject& subject) {
  const File f = TRY(read_file(subject));
  PackInfo info = TRY(read_info(subject));
  info.min_host_minor = 0;  // which host it needs is another case
  return audit_pack(f.elf, info, info.torch);
}

Result<> run_path(Subject& subject) {
  const File f = TRY(read_file(subject));
  if (f.elf.runpaths.empty()) return {};
  return broken(fmt::format("has the run path {}; link it without -rpath", quote(f.elf.runpaths.front())));
}

Result<> nodelete(Subject& subject) {
  const File f = TRY(read_file(subject));
  if (f.elf.nodelete) return {};
  return broken("could be unloaded; link it with -z nodelete");
}

Result<> stack(Subject& subject) {
  const File f = TRY(read_file(subject));
  if (!f.elf.executable_stack) return {};
  return broken("asks for an executable stack; link it with -z noexecstack");
}

Result<> text_relocations(Subject& subject) {
  const File f = TRY(read_file(subject));
  if (!f.elf.text_relocations) return {};
  return broken("has text relocations; compile it with -fPIC");
}

Result<> host_version(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  const auto minor = [&](int32_t m) { return fmt::format("{}.{}", info.abi, m); };
  const int32_t newest = newest_minor(info.abi);
  if (info.min_host_minor > newest)
    return broken(fmt::format("needs a host of ABI {}, newer than this one ({}); build it with MORTISE_TARGET_MINOR={}",
                              minor(info.min_host_minor), minor(newest), newest));
  if (info.min_host_minor > info.abi_minor)
    return broken(fmt::format("needs a host of ABI {} though it is built for {}", minor(info.min_host_minor),
                              minor(info.abi_minor)));
  return {};
}

Result<> described(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  for (const PluginInfo& plugin : info.plugins) {
    if (trim(plugin.summary).empty()) return broken(fmt::format("plugin {} has no summary", quote(plugin.name)));
    if (plugin.summary.find('\n') != std::string::npos)
      return broken(fmt::format("the summary of plugin {} is longer than a line", quote(plugin.name)));
    for (const ParamInfo& param : plugin.params) {
      if (trim(param.doc).empty())
        return broken(fmt::format("parameter {} of plugin {} has no doc", quote(param.name), quote(plugin.name)));
    }
  }
  return {};
}

Result<> known_names(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  for (const PluginInfo& plugin : info.plugins) {
    const std::string who = "plugin " + quote(plugin.name);
    const KindInfo* const kind = find_kind(plugin.kind);
    if (kind == nullptr) return broken(fmt::format("{} is of the unknown kind {}", who, quote(plugin.kind)));
    const std::vector<std::string> inputs(kind->inputs.begin(), kind->inputs.end());
    for (const std::string& name : plugin.requires_inputs) {
      if (std::find(inputs.begin(), inputs.end(), name) == inputs.end())
        return broken(fmt::format("{} requires {}, which its kind does not get; {}", who, quote(name),
                                  did_you_mean(name, inputs)));
    }
    for (const std::string& name : plugin.consumes) {
      if (name != column::RolloutIsWeights::name)
        return broken(fmt::format("{} consumes {}, which is not a stage of the engine; there is {}", who, quote(name),
                                  column::RolloutIsWeights::name));
    }
  }
  return {};
}

Result<> roles(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  for (const PluginInfo& plugin : info.plugins) {
    for (const ParamInfo& param : plugin.params) {
      if (param.role == ParamRole::kPlain) continue;
      const std::string who = fmt::format("parameter {} of plugin {} has the role {}", quote(param.name),
                                          quote(plugin.name), param_role_name(param.role));
      if (param.type != ParamType::kText) return broken(who + ", but only a text can have one");
      if (param.role == ParamRole::kColumn && plugin.kind != MORTISE_KIND_REWARD)
        return broken(who + ", and only rewards get data columns");
      if (param.role == ParamRole::kSecret && !param.default_text.value_or("").empty())
        return broken(
            who +
            " and a default, which anyone can read in the file; remove the default, or make the parameter mandatory");
    }
  }
  return {};
}

constexpr Case kStaticCases[] = {
    {"static.readable", "R10", kPack, "the file is a complete ELF64 shared object", readable, false},
    {"static.note", "R13", kPack, "it has one correct metadata note", note, false},
    {"static.one_export", "R10", kPack, "it exports its pack symbol and nothing else", one_export, false},
    {"static.needs", "R11", kPack, "it needs only the C and C++ runtimes, or the libraries in its note", needs, false},
    {"static.run_path", "R11", kPack, "it has no run path", run_path, false},
    {"static.nodelete", "R12", kPack, "it cannot be unloaded", nodelete, false},
    {"static.stack", "R26", kPack, "it does not ask for an executable stack", stack, false},
    {"static.text_relocations", "R26", kPack, "loading it does not change its code", text_relocations, false},
    {"static.host_version", "R8", kPack, "this host is new enough for it", host_version, false},
    {"static.described", "R27", kPack, "every plugin has a summary, and every parameter a doc", described, false},
    {"static.roles", "R44", kPack, "roles of parameters fit their types and kinds", roles, false},
    {"static.known_names", "R28", kPack, "kinds, required inputs and consumed stages exist", known_names, false},
};

}  // namespace

std::span<const Case> static_cases() { return kStaticCases; }

}  // namespace mortise::check
