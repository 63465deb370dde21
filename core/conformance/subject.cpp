// Loads the pack under test, creates instances, and records what they log, fail and count.
#include "conformance/subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/devices.h"
#include "plugin/host/library.h"
#include "plugin/host/registry.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/note.h"
#include "plugin/pack/pack_file.h"

namespace mortise::check {
namespace {

constexpr int64_t kStep = 3;  // what calls report

}  // namespace

Json request_json(const Request& request) {
  return {{"case", request.case_id},         {"pack", request.pack},           {"sha256", request.sha256},
          {"plugin", request.plugin},        {"kind", request.kind},           {"params", request.params},
          {"prompts", request.prompts},      {"samples", request.num_samples}, {"timeout_ms", request.timeout_ms},
          {"host_torch", request.host_torch}};
}

Result<Request> parse_request(std::string_view line) {
  const Json json = TRY(parse_json(line, "request"));
  Request out;
  out.case_id = TRY(json_string(json, "case", "request"));
  out.pack = TRY(json_string(json, "pack", "request"));
  out.sha256 = TRY(json_string(json, "sha256", "request"));
  out.plugin = TRY(json_string(json, "plugin", "request"));
  out.kind = TRY(json_string(json, "kind", "request"));
  out.num_samples = TRY(json_int(json, "samples", "request"));
  out.timeout_ms = TRY(json_int(json, "timeout_ms", "request"));
  out.host_torch = TRY(json_string(json, "host_torch", "request"));
  if (const Json* params = json_find(json, "params")) out.params = *params;
  if (const Json* prompts = json_find(json, "prompts")) {
    for (const Json& prompt : *prompts) out.prompts.push_back(prompt.get<std::vector<int64_t>>());
  }
  return out;
}

Result<> judge(const SlotCall& call, std::string_view slot) {
  const std::string name(slot);
  if (!call.thrown.empty()) return broken(fmt::format("{} threw {}", name, call.thrown));
  if (call.code < 0 || call.code > MORTISE_UNAUTHENTICATED)
    return broken(fmt::format("{} returned {}, which is not a status code", name, call.code));
  if (call.code != MORTISE_OK && call.fail_code == MORTISE_OK)
    return broken(fmt::format("{} returned {} without a text; return host->fail(call, code, text)", name,
                              status_name(call.code)));
  if (call.code == MORTISE_OK && call.fail_code != MORTISE_OK)
    return broken(fmt::format("{} reported a failure ({}), but returned 0", name, call.text));
  if (!call.misuse.empty()) return broken(fmt::format("{} {}", name, call.misuse));
  return {};
}

Result<> demand_ok(const SlotCall& call, std::string_view slot) {
  TRY(judge(call, slot));
  if (call.code == MORTISE_OK) return {};
  return broken(fmt::format("{} failed: {} ({})", slot, call.text, status_name(call.code)));
}

Instance::Instance(Instance&& other) noexcept
    : subject_(other.subject_), head_(other.head_), self_(other.self_), alive_(std::exchange(other.alive_, false)) {}

Instance::~Instance() { (void)end(); }

std::string Instance::end() {
  if (!std::exchange(alive_, false)) return "";
  try {
    catchable(head_.destroy)(self_);
  } catch (...) {
    return "destroy threw an exception";
  }
  return "";
}

const void* Instance::extension(const char* id) const {
  return head_.get_extension == nullptr ? nullptr : head_.get_extension(self_, id);
}

PackInfo info_of(const PackFile& file) {
  PackInfo out;
  const auto elf = read_elf(file.bytes(), file.path());
  const auto note = elf.ok() ? find_note(*elf, file.path()) : Result<std::string_view>(elf.error());
  if (note.ok()) {
    auto pack = parse_note(*note, file.path());
    if (pack.ok()) out = *std::move(pack);
  }
  out.path = file.path();
  out.sha256 = file.sha256();
  return out;
}

Subject::Subject(Request request, PackInfo pack, PackFile* sealed)
    : request_(std::move(request)),
      pack_(std::move(pack)),
      sealed_(sealed),
      identity_(std::make_shared<InstanceIdentity>()) {
  identity_->label = fmt::format("{}@{}", request_.plugin, pack_.label());
  identity_->prefix = identity_->label;
  identity_->params = request_.params;
  identity_->rng_seed = 7;
}

Result<> Subject::load() {
  const Library* library = TRY(sealed_ != nullptr ? Library::load(*sealed_, request_.host_torch)
                                                  : Library::load(pack_, request_.host_torch));
  if (request_.plugin.empty()) return {};
  info_ = library->info().find_plugin(request_.kind, request_.plugin);
  vtable_ = library->vtable(request_.kind, request_.plugin);
  if (info_ == nullptr || vtable_ == nullptr) return broken("the pack has no plugin " + quote(request_.plugin));
  const mortise_descriptor* descriptor = library->descriptor(request_.kind, request_.plugin);
  const auto types = descriptor == nullptr ? std::vector<int32_t>{MORTISE_CPU} : device_types(*descriptor);
  constexpr int32_t kRocm = 10;  // in DLPack: a device of no plugin
  const bool takes_cuda = types.ok() && std::find(types->begin(), types->end(), MORTISE_CUDA) != types->end();
  untaken_device_ = takes_cuda ? kRocm : MORTISE_CUDA;
  return {};
}

Result<Instance> Subject::create(const mortise_host* host, SlotCall* call) const {
  const auto head = read_abi_struct(static_cast<const VtableHead*>(vtable_));
  if (head.create == nullptr || head.destroy == nullptr) return broken("its vtable lacks create or destroy");
  void* self = nullptr;
  const auto slot = catchable(head.create);
  SlotCall made = run(0, [&](mortise_call* context) { return slot(host, context, &self); });
  if (call != nullptr) *call = made;
  TRY(demand_ok(made, "create"));
  return Instance(*this, head, self);
}

void Subject::around_slots(std::function<void()> before, std::function<void()> after) {
  before_slot_ = std::move(before);
  after_slot_ = std::move(after);
}

SlotCall Subject::run(int64_t num_rows, const std::function<int32_t(mortise_call*)>& slot) const {
  mortise_call call;
  call.identity = identity_.get();
  call.step = kStep;
  call.num_rows = num_rows;
  SlotCall out;
  const Stopwatch watch;
  struct Around {
    const std::function<void()>& after;
    ~Around() {
      if (after) after();
    }
  };
  try {
    const Around around{after_slot_};
    if (before_slot_) before_slot_();
    out.code = slot(&call);
  } catch (const std::exception& e) {
    out.thrown = std::string("an exception: ") + e.what();
  } catch (...) {
    out.thrown = "something that is not a std::exception";
  }
  out.seconds = watch.elapsed_s();
  out.fail_code = call.fail_code;
  out.text = call.fail_text;
  out.misuse = call.misuse;
  out.metrics = std::move(call.metrics);
  out.failed_rows = std::move(call.failed_rows);
  return out;
}

}  // namespace mortise::check
