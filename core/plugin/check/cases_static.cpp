// Static cases: what the file itself shows, with none of its code run.
#include <algorithm>

#include "foundation/base/text.h"
#include "plugin/check/subject.h"
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
  if (f.elf.exports == std::vector<std::string>{kPackSymbol}) return {};
  std::vector<std::string> names;
  for (const std::string& name : f.elf.exports) {
    if (names.size() < 5) names.push_back(quote(name));
  }
  return broken("exports " + (names.empty() ? "nothing" : join(names, ", ")) + " instead of " + quote(kPackSymbol) +
                " alone; link it with the SDK's version script");
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
  return broken("has the run path " + quote(f.elf.runpaths.front()) + "; link it without -rpath");
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
  const auto minor = [](int32_t m) { return "0." + std::to_string(m); };
  if (info.min_host_minor > MORTISE_ABI_MINOR)
    return broken("needs a host of ABI " + minor(info.min_host_minor) + ", newer than this one (" +
                  minor(MORTISE_ABI_MINOR) +
                  "); build it with MORTISE_TARGET_MINOR=" + std::to_string(MORTISE_ABI_MINOR));
  if (info.min_host_minor > info.abi_minor)
    return broken("needs a host of ABI " + minor(info.min_host_minor) + " though it is built for " +
                  minor(info.abi_minor));
  return {};
}

Result<> described(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  for (const PluginInfo& plugin : info.plugins) {
    if (trim(plugin.summary).empty()) return broken("plugin " + quote(plugin.name) + " has no summary");
    if (plugin.summary.find('\n') != std::string::npos)
      return broken("the summary of plugin " + quote(plugin.name) + " is longer than a line");
    for (const ParamInfo& param : plugin.params) {
      if (trim(param.doc).empty())
        return broken("parameter " + quote(param.name) + " of plugin " + quote(plugin.name) +
                      " says nothing about itself");
    }
  }
  return {};
}

std::vector<std::string> known_inputs(const std::string& kind) {
  if (kind == MORTISE_KIND_POLICY_LOSS)
    return {"log_prob",     "old_log_prob",     "advantages",         "response_mask", "weight",
            "ref_log_prob", "rollout_log_prob", "rollout_is_weights", "entropy"};
  if (kind == MORTISE_KIND_KL_ESTIMATOR) return {"log_prob", "ref_log_prob", "response_mask", "weight", "old_log_prob"};
  if (kind == MORTISE_KIND_ADVANTAGE_ESTIMATOR)
    return {"token_level_rewards", "response_mask", "rewards",        "reward_weights",    "row_valid", "values",
            "reward_baselines",    "old_log_prob",  "sum_pi_squared", "rollout_is_weights"};
  return {};
}

Result<> known_names(Subject& subject) {
  const PackInfo info = TRY(read_info(subject));
  for (const PluginInfo& plugin : info.plugins) {
    const std::string who = "plugin " + quote(plugin.name);
    if (kind_bit(plugin.kind) == 0) return broken(who + " is of the unknown kind " + quote(plugin.kind));
    const auto inputs = known_inputs(plugin.kind);
    for (const std::string& name : plugin.requires_inputs) {
      if (std::find(inputs.begin(), inputs.end(), name) == inputs.end())
        return broken(who + " requires " + quote(name) + ", which its kind does not get; " +
                      did_you_mean(name, inputs));
    }
    for (const std::string& name : plugin.consumes) {
      if (name != "rollout_is_weights")
        return broken(who + " consumes " + quote(name) +
                      ", which is no stage of the engine; there is rollout_is_weights");
    }
  }
  return {};
}

constexpr Case kCases[] = {
    {"static.readable", "R10", kPack, "the file is a whole ELF64 shared object", readable, false},
    {"static.note", "R13", kPack, "it has one metadata note, and the note is right", note, false},
    {"static.one_export", "R10", kPack, "it exports mortise_pack_v0 and nothing else", one_export, false},
    {"static.needs", "R11", kPack, "it needs the C and C++ runtimes alone, or what its note lists", needs, false},
    {"static.run_path", "R11", kPack, "it has no run path", run_path, false},
    {"static.nodelete", "R12", kPack, "it cannot be unloaded", nodelete, false},
    {"static.stack", "R26", kPack, "it asks for no executable stack", stack, false},
    {"static.text_relocations", "R26", kPack, "its code is not patched on load", text_relocations, false},
    {"static.host_version", "R8", kPack, "this host is new enough for it", host_version, false},
    {"static.described", "R27", kPack, "every plugin has a summary, every parameter a doc", described, false},
    {"static.known_names", "R28", kPack, "kinds, required inputs and consumed stages exist", known_names, false},
};

}  // namespace

std::span<const Case> static_cases() { return kCases; }

}  // namespace mortise::check
