// Creates and destroys instances, and turns the metrics and errors of a call into ours.
#include "plugin/host/instance.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "foundation/formats/sha256.h"
#include "foundation/metrics/registry.h"
#include "mortise/ext/state.h"
#include "mortise/kinds/environment.h"
#include "mortise/pack.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/devices.h"
#include "plugin/host/guard.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/params.h"
#include "plugin/host/remote_instance.h"
#include "plugin/host/running_code.h"

namespace mortise {
namespace {

struct VtableHead {
  MORTISE_VTABLE_HEAD
};
constexpr size_t kMinHeadSize = offsetof(VtableHead, get_extension);

// The random streams of two plugins of one run differ; those of one plugin do not depend on version or path. A pack of
// ABI 0 keeps the numbers that it had under the id of its time, so that a run resumes with them.
uint64_t plugin_seed(uint64_t run_seed, const PluginRef& ref) {
  const bool is_draft = ref.pack->abi == 0 && ref.plugin->kind == MORTISE_KIND_ENVIRONMENT;
  const std::string_view kind = is_draft ? kDraftEnvironment : ref.plugin->kind;
  const Sha256Digest digest = sha256(fmt::format("{}\n{}\n{}", kind, ref.pack->id, ref.plugin->name));
  uint64_t mixed = 0;
  for (size_t i = 0; i < 8; ++i) mixed = mixed << 8 | digest[i];
  return run_seed ^ mixed;
}

Result<Reduction> parse_reduction(const CallSite& site, const MetricRecord& record) {
  switch (record.reduction) {
    case MORTISE_REDUCE_MEAN:
      return Reduction::kMean;
    case MORTISE_REDUCE_SUM:
      return Reduction::kSum;
    case MORTISE_REDUCE_MAX:
      return Reduction::kMax;
    case MORTISE_REDUCE_MIN:
      return Reduction::kMin;
    default:
      return guard_error(site,
                         fmt::format("metric {} has the unknown reduction {}", quote(record.name), record.reduction));
  }
}

Result<> hand_over_metrics(const CallSite& site, const std::vector<MetricRecord>& records, MetricSet* metrics) {
  for (const MetricRecord& record : records) {
    const Reduction reduction = TRY(parse_reduction(site, record));
    if (metrics == nullptr) continue;
    if (auto added = metrics->add_user(record.name, record.sum, record.weight, reduction); !added.ok()) {
      return guard_error(site, fmt::format("metric {} was refused: {}", quote(record.name), added.error().what),
                         added.error().next);
    }
  }
  return {};
}

// A plugin that takes no tensors of host memory is refused before its first call.
Result<std::vector<int32_t>> checked_devices(const CallSite& site, const LoadedPlugin& plugin) {
  if (plugin.descriptor == nullptr) return std::vector<int32_t>{MORTISE_CPU};
  const RunningCode running(site.identity->label, "get_extension", 0, site.limit_ms);
  try {
    auto types = device_types(*plugin.descriptor);
    if (!types.ok()) return guard_error(site, types.error().what, types.error().next);
    return types;
  } catch (...) {
    return guard_error(site, "get_extension of its descriptor threw an exception; a slot must not");
  }
}

struct SavedState {
  std::string bytes;
  std::string fault;
};
constexpr uint64_t kMostStateBytes = uint64_t{1} << 32;  // far above any plugin's, far below what ends the run

void append_state(void* context, mortise_bytes bytes) noexcept {
  auto& saved = *static_cast<SavedState*>(context);
  if (bytes.size == 0 || !saved.fault.empty()) return;
  try {
    if (bytes.data == nullptr) {
      saved.fault = "saved bytes at a null pointer";
    } else if (bytes.size > kMostStateBytes - saved.bytes.size()) {
      saved.fault = fmt::format("saved {} bytes at once, more than 4 GiB of state in all", bytes.size);
    } else {
      saved.bytes.append(static_cast<const char*>(bytes.data), bytes.size);
    }
  } catch (const std::exception&) {
    saved.fault = "there is no memory for its state";  // short: needs no memory
  }
}

}  // namespace

struct PluginInstance::Impl {
  LoadedPlugin plugin;
  std::unique_ptr<const PackInfo> pack_copy;  // for a remote instance, which may outlive the registry
  std::unique_ptr<RemoteInstance> remote;     // null: the instance is here
  InstanceIdentity identity;
  RunKey key;
  VtableHead vtable{};
  void* self = nullptr;
  bool alive = false;
  bool takes_device = false;  // the plugin takes tensors of key.device

  ~Impl() {
    if (!alive) return;
    const RunningCode running(identity.label, "destroy", 0, limit_ms());
    try {
      catchable(vtable.destroy)(self);
    } catch (...) {
      log_error(identity.label + ": destroy threw an exception; a slot must not");
    }
  }
  // After which a call ends the program.
  [[nodiscard]] int64_t limit_ms() const { return key.in_worker ? 0 : key.call_timeout_ms; }
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

PluginInstance::PluginInstance(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PluginInstance::PluginInstance(PluginInstance&&) noexcept = default;
PluginInstance& PluginInstance::operator=(PluginInstance&&) noexcept = default;
PluginInstance::~PluginInstance() = default;

Result<PluginInstance> PluginInstance::create(PluginRegistry& registry, std::string_view kind, std::string_view name,
                                              const Json& params, const RunKey& key, const RemoteMaker& remote) {
  const PluginRef ref = TRY(registry.find(kind, name));
  InstanceIdentity identity = TRY(identify(ref, params, key));
  if (auto far = remote ? TRY(remote(ref, identity, key)) : nullptr) {
    auto impl = std::make_unique<Impl>();
    impl->pack_copy = std::make_unique<const PackInfo>(*ref.pack);
    impl->plugin.pack = impl->pack_copy.get();
    impl->plugin.plugin = impl->pack_copy->find_plugin(ref.plugin->kind, ref.plugin->name);
    impl->identity = std::move(identity);
    impl->key = key;
    impl->remote = std::move(far);
    return PluginInstance(std::move(impl));
  }
  return create(TRY(registry.load(ref)), std::move(identity), key);
}

Result<InstanceIdentity> PluginInstance::identify(const PluginRef& ref, const Json& params, const RunKey& key) {
  InstanceIdentity identity;
  identity.label = fmt::format("{} {}", short_kind(ref.plugin->kind), ref.label());
  identity.prefix = fmt::format("{}@{}", ref.plugin->name, ref.pack->id);
  hide_secrets(*ref.plugin, params);
  identity.params = TRY(validate_params(*ref.plugin, params));
  identity.rng_seed = plugin_seed(key.seed, ref);
  return identity;
}

Result<PluginInstance> PluginInstance::create(const LoadedPlugin& plugin, InstanceIdentity identity,
                                              const RunKey& key) {
  auto impl = std::make_unique<Impl>();
  impl->identity = std::move(identity);
  impl->key = key;
  // The time that such a plugin takes is the engine's own: that of a generation, say.
  if ((plugin.plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0) impl->key.call_timeout_ms = 0;
  impl->plugin = plugin;
  hide_secrets(*plugin.plugin, impl->identity.params);

  const auto* head = static_cast<const VtableHead*>(impl->plugin.vtable);
  const CallSite site{&impl->identity, "create", 0};
  if (head->struct_size < kMinHeadSize) return guard_error(site, "its vtable is too small", "build the pack again");
  const KindInfo* kind = find_kind(plugin.plugin->kind);
  if (kind != nullptr && plugin.pack->abi_minor <= newest_minor(plugin.pack->abi) &&
      head->struct_size > kind->vtable_size)
    return guard_error(site, "its vtable is too large", "build the pack again");
  impl->vtable = read_abi_struct(head);
  if (impl->vtable.create == nullptr || impl->vtable.destroy == nullptr) {
    return guard_error(site, "its vtable lacks create or destroy", "build the pack again");
  }
  const std::vector<int32_t> types = TRY(checked_devices(site, plugin));
  impl->takes_device = key.device != nullptr && std::ranges::find(types, key.device->type()) != types.end();
  PluginInstance instance(std::move(impl));
  Impl& made = *instance.impl_;
  const auto create_slot = catchable(made.vtable.create);
  bool bad_file = false;  // the fault is a file among its parameters, not the plugin
  auto called = instance.call("create", 0, nullptr, {}, [&](mortise_call* call) {
    const int32_t status = create_slot(host_table(plugin.pack->abi), call, &made.self);
    bad_file = call->bad_file || status == MORTISE_NOT_FOUND || status == MORTISE_PERMISSION_DENIED ||
               status == MORTISE_DATA_LOSS;
    return status;
  });
  if (!called.ok() && bad_file) called.error().kind = ErrorKind::kData;
  TRY(std::move(called));
  made.alive = true;
  return instance;
}

const PluginInfo& PluginInstance::info() const { return *impl_->plugin.plugin; }
const PackInfo& PluginInstance::pack() const { return *impl_->plugin.pack; }
const void* PluginInstance::vtable() const { return impl_->plugin.vtable; }
void* PluginInstance::self() const { return impl_->self; }
const Json& PluginInstance::params() const { return impl_->identity.params; }
const std::string& PluginInstance::label() const { return impl_->identity.label; }
const RunKey& PluginInstance::key() const { return impl_->key; }
RemoteInstance* PluginInstance::remote() const { return impl_->remote.get(); }
PluginDevice* PluginInstance::device() const { return impl_->takes_device ? impl_->key.device : nullptr; }

Error PluginInstance::error(std::string_view slot_name, int64_t step, std::string what, std::string next) const {
  return guard_error({&impl_->identity, slot_name, step}, std::move(what), std::move(next));
}

Result<> PluginInstance::settle(std::string_view slot_name, int64_t step, std::initializer_list<NamedOutput> outputs,
                                const Layout& layout, const CountedCells& counted) const {
  return settle_outputs({&impl_->identity, slot_name, step}, {outputs.begin(), outputs.size()}, layout, counted);
}

Result<CallReport> PluginInstance::call(std::string_view slot_name, int64_t step, MetricSet* metrics,
                                        const CallOptions& options, const std::function<int32_t(mortise_call*)>& slot) {
  const CallSite site{&impl_->identity, slot_name, step, impl_->key.call_timeout_ms, !impl_->key.in_worker};
  mortise_call call;
  call.identity = &impl_->identity;
  call.step = step;
  call.num_rows = options.num_rows;
  call.stream = options.stream;
  call.cancelled = options.cancelled != nullptr ? options.cancelled : impl_->key.cancelled;
  CallReport report;
  TRY(run_guarded(site, call, options.timeout_ms, slot, &report.seconds));
  TRY(hand_over_metrics(site, call.metrics, metrics));
  report.metrics = std::move(call.metrics);
  report.failed_rows = std::move(call.failed_rows);
  auto& rows = report.failed_rows;
  std::stable_sort(rows.begin(), rows.end(), [](const FailedRow& a, const FailedRow& b) { return a.row < b.row; });
  rows.erase(
      std::unique(rows.begin(), rows.end(), [](const FailedRow& a, const FailedRow& b) { return a.row == b.row; }),
      rows.end());
  return report;
}

Result<> add_plugin_metrics(const std::string& label, std::string_view slot_name, int64_t step,
                            const std::vector<MetricRecord>& records, MetricSet* metrics) {
  InstanceIdentity identity;
  identity.label = label;
  return hand_over_metrics({&identity, slot_name, step}, records, metrics);
}

const void* PluginInstance::extension(const char* id) const {
  if (impl_->vtable.get_extension == nullptr) return nullptr;
  const RunningCode running(label(), "get_extension", 0, impl_->limit_ms());
  return catchable(impl_->vtable.get_extension)(impl_->self, id);
}

Result<std::optional<std::string>> PluginInstance::save_state() {
  if (impl_->remote != nullptr) return impl_->remote->save_state();
  const auto* found = static_cast<const mortise_state*>(extension(MORTISE_EXT_STATE));
  if (found == nullptr) return std::optional<std::string>();
  const mortise_state state = read_abi_struct(found);
  if (state.save == nullptr) return error("save", 0, "offers mortise.state/1 without save");
  SavedState saved;
  auto sink = make_abi_struct<mortise_state_sink>();
  sink.context = &saved;
  sink.write = append_state;
  const auto slot = catchable(state.save);
  TRY(call("save", 0, nullptr, {}, [&](mortise_call* context) { return slot(impl_->self, context, &sink); }));
  if (!saved.fault.empty()) return error("save", 0, saved.fault, "tell the pack's author");
  return std::optional<std::string>(std::move(saved.bytes));
}

Result<void> PluginInstance::load_state(std::string_view bytes) {
  if (impl_->remote != nullptr) return impl_->remote->load_state(bytes);
  const auto* found = static_cast<const mortise_state*>(extension(MORTISE_EXT_STATE));
  const mortise_state state = found == nullptr ? mortise_state{} : read_abi_struct(found);
  if (state.load == nullptr) {
    return error("load", 0, "the checkpoint holds state of this plugin, but the plugin cannot load any",
                 "use the pack version of the checkpoint");
  }
  const auto slot = catchable(state.load);
  TRY(call("load", 0, nullptr, {}, [&](mortise_call* context) {
    return slot(impl_->self, context, {bytes.data(), bytes.size()});
  }));
  return {};
}

}  // namespace mortise
