// One plugin instance: made by the vtable's create, ended by its destroy, every call through the guard.
//
// The base of the adapters in kinds/; the engine uses those. Threading: an instance takes one call at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/host/kinds/layout.h"
#include "plugin/host/registry.h"

struct mortise_call;

namespace mortise {

class MetricSet;
class PluginDevice;       // devices.h
class RemoteInstance;     // remote_instance.h
struct InstanceIdentity;  // host_services.h

// What instances of one run share. The seed keys their random streams.
struct RunKey {
  uint64_t seed = 0;
  const std::atomic<bool>* cancelled = nullptr;  // if set, host->cancelled() reports it to the plugin; may be null
  bool check_writes = false;                     // outputs between guard words (plugins.check)
  int64_t call_timeout_ms = 0;                   // time limit of every call; 0: none (plugins.call_timeout)
  // In a worker of a loss or an estimator: the trainer ends a call that runs on, and outputs have room for guard words
  // around them.
  bool in_worker = false;
  // Where the run's models are. Losses and estimators that take its tensors get them there. Null: on the host.
  PluginDevice* device = nullptr;
};

// Limits of one call.
struct CallOptions {
  int64_t timeout_ms = 0;                        // 0: none. Measured: a call that ends later is an error
  int64_t num_rows = 0;                          // rows of the batch: what fail_row may name
  const std::atomic<bool>* cancelled = nullptr;  // instead of RunKey's
  void* stream = nullptr;                        // where the call's tensors are on a device: theirs
};

struct FailedRow {
  int64_t row = 0;  // place in the call's batch
  int32_t code = 0;
  std::string text{};
};

struct MetricRecord {
  std::string name{};
  double sum = 0;
  double weight = 0;
  int32_t reduction = 0;  // MORTISE_REDUCE_*
};

// What one call produced in addition to its outputs.
struct CallReport {
  std::vector<MetricRecord> metrics{};   // checked; already in the MetricSet where one was given
  std::vector<FailedRow> failed_rows{};  // ascending by row
  double seconds = 0;
};

// Makes the remote side of an instance in a worker process. Empty, or null from it: the plugin runs in this process.
using RemoteMaker = std::function<Result<std::unique_ptr<RemoteInstance>>(
    const PluginRef& ref, const InstanceIdentity& identity, const RunKey& key)>;

class PluginInstance {
 public:
  // `params` are checked against the note; `name` may be "pack.id/plugin@range".
  static Result<PluginInstance> create(PluginRegistry& registry, std::string_view kind, std::string_view name,
                                       const nlohmann::ordered_json& params, const RunKey& key,
                                       const RemoteMaker& remote = {});
  // The two halves of it: who the instance is, without running code of its pack; and its creation.
  static Result<InstanceIdentity> identify(const PluginRef& ref, const nlohmann::ordered_json& params,
                                           const RunKey& key);
  static Result<PluginInstance> create(const LoadedPlugin& plugin, InstanceIdentity identity, const RunKey& key);
  PluginInstance(PluginInstance&&) noexcept;
  PluginInstance& operator=(PluginInstance&&) noexcept;
  ~PluginInstance();

  [[nodiscard]] const PluginInfo& info() const;
  [[nodiscard]] const PackInfo& pack() const;
  [[nodiscard]] const void* vtable() const;
  [[nodiscard]] void* self() const;
  [[nodiscard]] const nlohmann::ordered_json& params() const;  // validated, defaults filled in
  // "policy_loss gspo@mortise.losses 0.1.0 (1a2b3c4d5e6f)"
  [[nodiscard]] const std::string& label() const;
  [[nodiscard]] const RunKey& key() const;
  // If the instance lives in a worker: its remote side. Then it has no vtable here, and call() may not be used.
  [[nodiscard]] RemoteInstance* remote() const;
  // RunKey's device if the plugin takes tensors there. Null: it gets host memory.
  [[nodiscard]] PluginDevice* device() const;

  // Runs slot(call) under the guard: status, error text, deadline, exceptions. Metrics go to `metrics` if the call
  // succeeds. step is 0 outside a run.
  Result<CallReport> call(std::string_view slot_name, int64_t step, MetricSet* metrics, const CallOptions& options,
                          const std::function<int32_t(mortise_call*)>& slot);
  // An error of this instance, worded as the guard does.
  [[nodiscard]] Error error(std::string_view slot_name, int64_t step, std::string what, std::string next = "") const;

  // Sets cells that do not count to 0; any other that is not finite is an error naming output, row and token.
  [[nodiscard]] Result<> settle(std::string_view slot_name, int64_t step, std::initializer_list<NamedOutput> outputs,
                                const Layout& layout, const CountedCells& counted) const;

  // mortise.state/1: nothing when the plugin keeps no state.
  Result<std::optional<std::string>> save_state();
  Result<void> load_state(std::string_view bytes);

 private:
  struct Impl;
  [[nodiscard]] const void* extension(const char* id) const;  // null: the plugin has none of this id
  explicit PluginInstance(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Adds a plugin's records to `metrics` (null: only checks them). `label` is the instance's.
Result<void> add_plugin_metrics(const std::string& label, std::string_view slot_name, int64_t step,
                                const std::vector<MetricRecord>& records, MetricSet* metrics);

// Offers plugins the table `extension` under `id` ("mortise.generate/1"). It must remain valid forever; null withdraws
// it.
void register_host_extension(std::string_view id, const void* extension);

// Threads of host->parallel_for, the caller included. Default: pool_threads(). Call before the first plugin call.
void set_plugin_threads(int num_threads);
[[nodiscard]] int plugin_threads();

}  // namespace mortise
