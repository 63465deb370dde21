// The plugin under test, in the process of its case: the pack loaded as the engine loads it, instances made against a
// host of the case's choice, slots called with everything they do noted.
//
// Threading: one thread, except where a case calls instances from others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/case.h"
#include "conformance/sim_host.h"
#include "foundation/base/result.h"
#include "foundation/formats/json.h"
#include "mortise/pack.h"
#include "plugin/host/host_services.h"
#include "plugin/pack/pack_file.h"
#include "plugin/pack/pack_info.h"

namespace mortise::check {

// What a case runs on; a line of JSON between processes.
struct Request {
  std::string case_id;
  std::string pack;                           // path
  std::string sha256;                         // that the file must have, whoever reads it
  std::string plugin;                         // empty for cases about the pack
  std::string kind;                           // full id
  Json params;                                // validated, defaults filled in
  std::vector<std::vector<int64_t>> prompts;  // for rollout backends
  int64_t num_samples = 2;                    // per prompt
  int64_t timeout_ms = 10'000;
  std::string host_torch;  // version of libtorch in this program; empty: none
};
[[nodiscard]] Json request_json(const Request& request);
[[nodiscard]] Result<Request> parse_request(std::string_view line);

// How one slot call ended.
struct SlotCall {
  int32_t code = MORTISE_OK;
  int32_t fail_code = MORTISE_OK;
  std::string text;    // what host->fail was given
  std::string thrown;  // an exception, against the rules
  std::string misuse;  // how the host's services were misused
  std::vector<MetricRecord> metrics;
  std::vector<FailedRow> failed_rows;
  double seconds = 0;
};
// Broken if the call ended in a way that no call may: an exception, an unknown status, a failure without a text.
[[nodiscard]] Result<> judge(const SlotCall& call, std::string_view slot);
// The same, and broken too if the call failed at all.
[[nodiscard]] Result<> demand_ok(const SlotCall& call, std::string_view slot);

// Every vtable begins so.
struct VtableHead {
  MORTISE_VTABLE_HEAD
};

class Instance {
 public:
  Instance(const Subject& subject, VtableHead head, void* self) : subject_(&subject), head_(head), self_(self) {}
  Instance(Instance&& other) noexcept;
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  Instance& operator=(Instance&&) = delete;
  ~Instance();  // destroy

  [[nodiscard]] void* self() const { return self_; }
  [[nodiscard]] const Subject& subject() const { return *subject_; }
  // The instance's table for an extension, or null.
  [[nodiscard]] const void* extension(const char* id) const;
  // "" or the text of an exception from destroy. The instance no longer exists.
  std::string end();

 private:
  const Subject* subject_;
  VtableHead head_;
  void* self_;
  bool alive_ = true;
};

// What the note says. Where it cannot be read, the id is empty, and the static cases report why.
[[nodiscard]] PackInfo info_of(const PackFile& file);

class Subject {
 public:
  // `sealed`: the pack, if it could be sealed; else null.
  Subject(Request request, PackInfo pack, PackFile* sealed = nullptr);

  [[nodiscard]] const Request& request() const { return request_; }
  [[nodiscard]] const PackInfo& pack() const { return pack_; }
  [[nodiscard]] const PluginInfo& info() const { return *info_; }
  [[nodiscard]] uint32_t kind() const { return kind_bit(info_->kind); }
  template <class Vtable>
  [[nodiscard]] const Vtable& vtable() const {
    return *static_cast<const Vtable*>(vtable_);
  }
  [[nodiscard]] const void* raw_vtable() const { return vtable_; }
  // A device whose tensors the plugin does not take, as far as it says.
  [[nodiscard]] int32_t untaken_device() const { return untaken_device_; }

  // Loads the pack the way the engine does (audit, note against table, open). Needed before all below.
  Result<> load();
  // `call` gets how create ended, if given; without it every failure is broken().
  Result<Instance> create(const mortise_host* host, SlotCall* call = nullptr) const;
  [[nodiscard]] SlotCall run(int64_t num_rows, const std::function<int32_t(mortise_call*)>& slot) const;
  // A remark next to "passed": what the case could not test.
  void note(std::string text) { note_ = std::move(text); }
  [[nodiscard]] const std::string& noted() const { return note_; }
  // Runs right before and right after each slot from now on; null for nothing.
  void around_slots(std::function<void()> before, std::function<void()> after);

 private:
  Request request_;
  PackInfo pack_;
  PackFile* sealed_;
  const PluginInfo* info_ = nullptr;
  const void* vtable_ = nullptr;
  int32_t untaken_device_ = 0;
  std::shared_ptr<InstanceIdentity> identity_;
  std::function<void()> before_slot_, after_slot_;
  std::string note_;
};

}  // namespace mortise::check
