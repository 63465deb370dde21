// Asks a plugin which columns and files it reads (mortise.reads/1).
#include "plugin/host/plugin_reads.h"

#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "mortise/mortise.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/guard.h"
#include "plugin/host/host_services.h"
#include "plugin/host/instance.h"
#include "plugin/pack/note.h"

namespace mortise {

namespace {

std::string text_of(mortise_text text) { return text.size == 0 ? std::string() : std::string(text.data, text.size); }

// What the sink was given, and the first thing that was wrong with it.
struct Taken {
  PluginReads reads;
  std::string fault;
};

void take_files(void* context, const mortise_file_set* given) noexcept try {
  auto& taken = *static_cast<Taken*>(context);
  const mortise_file_set in = read_abi_struct(given);
  FileSet set{text_of(in.param), text_of(in.name), text_of(in.what), text_of(in.folder), {}};
  for (uint64_t i = 0; i < in.num_files; ++i) set.files.push_back(text_of(in.files[i]));
  if (!is_plugin_name(set.name))
    taken.fault = fmt::format("the set of files {} is not [a-z][a-z0-9_]*", quote(set.name));
  std::ranges::sort(set.files);
  taken.reads.files.push_back(std::move(set));
} catch (...) {
  static_cast<Taken*>(context)->fault = "there is no memory for its files";
}

void take_column(void* context, const mortise_needed_column* given) noexcept try {
  auto& taken = *static_cast<Taken*>(context);
  const mortise_needed_column in = read_abi_struct(given);
  NeededColumn column{text_of(in.param), text_of(in.name), text_of(in.who), text_of(in.next)};
  if (column.name.empty()) taken.fault = "it needs a column without a name";
  taken.reads.columns.push_back(std::move(column));
} catch (...) {
  static_cast<Taken*>(context)->fault = "there is no memory for its columns";
}

// Each parameter that leads to something is one of the plugin's.
Result<> check_params_of(const CallSite& site, const PluginInfo& plugin, const Taken& taken) {
  if (!taken.fault.empty()) return guard_error(site, taken.fault);
  const auto check = [&](const std::string& param) -> Result<> {
    if (plugin.find_param(param) != nullptr) return {};
    return guard_error(site, fmt::format("it names the parameter {}, which it does not declare", quote(param)));
  };
  for (const FileSet& set : taken.reads.files) TRY(check(set.param));
  for (const NeededColumn& column : taken.reads.columns) TRY(check(column.param));
  return {};
}

}  // namespace

Result<PluginReads> plugin_reads(const PluginRegistry& registry, const PluginRef& ref, const Json& params) {
  if ((ref.plugin->flags & MORTISE_FLAG_TELLS_READS) == 0) return PluginReads();
  const InstanceIdentity identity = TRY(PluginInstance::identify(ref, params, {}));
  const LoadedPlugin loaded = TRY(registry.load(ref));
  const CallSite site{&identity, "tell", 0};
  const mortise_descriptor descriptor = read_abi_struct(loaded.descriptor);
  Taken taken;
  auto sink = make_abi_struct<mortise_reads_sink>();
  sink.context = &taken;
  sink.files = take_files;
  sink.column = take_column;
  mortise_call call;
  call.identity = &identity;
  bool has_table = false;
  const auto tell = [&](mortise_call* context) -> int32_t {
    if (descriptor.get_extension == nullptr) return MORTISE_OK;
    const auto* const found = static_cast<const mortise_reads*>(catchable(descriptor.get_extension)(MORTISE_EXT_READS));
    const mortise_reads reads = found == nullptr ? mortise_reads{} : read_abi_struct(found);
    if (reads.tell == nullptr) return MORTISE_OK;
    has_table = true;
    return catchable(reads.tell)(host_table(loaded.pack->abi), context, &sink);
  };
  double seconds = 0;
  auto done = run_guarded(site, call, 0, tell, &seconds);
  if (done.ok() && !has_table)
    return guard_error(site, "its flags announce mortise.reads/1, which it does not have", "tell the pack's author");
  if (!done.ok()) {
    done.error().kind = ErrorKind::kData;  // files are all that it looks at
    return std::move(done).error();
  }
  TRY(check_params_of(site, *loaded.plugin, taken));
  return std::move(taken.reads);
}

}  // namespace mortise
