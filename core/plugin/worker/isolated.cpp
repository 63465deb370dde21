// Sends calls to a worker, waits for their answers, and replaces a worker that ends.
#include "plugin/worker/isolated.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <utility>

#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/base/text.h"
#include "plugin/host/guard.h"
#include "plugin/host/remote_instance.h"
#include "plugin/worker/carried_state.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/shared_memory.h"
#include "plugin/worker/step_area.h"
#include "plugin/worker/supervisor.h"

namespace mortise {
namespace {

constexpr int kReadyTimeoutMs = 120'000;  // for a new worker, create() included
constexpr int kSendTimeoutMs = 10'000;
constexpr int64_t kGraceMs = 500;  // after the limit, for a call that ends on its own: it is then an ordinary error
constexpr int64_t kLookForStopMs = 50;  // between looks whether the run is stopping
constexpr int kMaxTries = 2;

// How one attempt at a call ended without an answer.
struct Lost {
  std::string text;
  bool is_late = false;  // its time was over
};

class IsolatedInstance : public RemoteInstance {
 public:
  static Result<std::unique_ptr<RemoteInstance>> start(const PluginRef& ref, const InstanceIdentity& identity,
                                                       const RunKey& key, const WorkerPlace& place) {
    LoadMessage load = load_message(ref, identity, place.limits, key);
    load.call_timeout_ms = key.call_timeout_ms;
    load.num_threads = plugin_threads();
    PoolOptions pool = place.pool;
    pool.num_workers = 1;
    pool.has_spare = false;
    std::unique_ptr<IsolatedInstance> made(new IsolatedInstance(load, key, *pool.system));
    made->supervisor_ = TRY(Supervisor::start(load, pool));
    made->state_ = CarriedState(made->supervisor_->ready(), identity.label);
    const std::string& without = made->supervisor_->without();
    log_info(
        fmt::format("{}: runs in a worker{}", identity.label, without.empty() ? "" : fmt::format(" ({})", without)));
    log_debug(fmt::format("{}: its worker has these limits: {}", identity.label, made->supervisor_->limits_text()));
    return std::unique_ptr<RemoteInstance>(std::move(made));
  }

  Result<CallReport> compute(const StepCall& call, const CallOptions& options) override {
    step_ = call.columns.step;
    const Stopwatch watch;
    ComputeMessage message = describe_call(kind_, call);
    message.timeout_ms = options.timeout_ms;
    TRY(grow(input_, message.input_bytes, "mortise-inputs", SharedMemory::Peer::kReads));
    write_inputs(kind_, message, call, input_.memory.data());
    for (int tries = 1;; ++tries) {
      std::optional<Lost> lost;
      std::optional<ComputedMessage> answer = TRY(ask(message, options, lost));
      if (answer) {
        if (answer->error) return *std::move(answer->error);
        read_outputs(message, output_.memory.data(), call);
        return CallReport{std::move(answer->metrics), {}, watch.elapsed_s()};
      }
      if (lost->is_late || tries == kMaxTries) {
        input_ = {};  // which may have been too large for a worker
        return give_up(*lost, tries);
      }
      log_warn(fmt::format("{}, {}, step {}: {}; the call is made once more in a new worker", label_, kStepSlot, step_,
                           lost->text));
    }
  }

  Result<std::optional<std::string>> save_state() override { return state_.bytes(); }

  Result<> load_state(std::string_view bytes) override {
    Slot* const slot = TRY(supervisor_->wait_idle(kReadyTimeoutMs));
    return state_.replace(*supervisor_, *slot, bytes);
  }

 private:
  // Shared memory that is kept from call to call. A worker remembers the number of the area that it has mapped.
  struct Area {
    SharedMemory memory;
    int64_t number = 0;
  };

  IsolatedInstance(const LoadMessage& load, const RunKey& key, WorkerSystem& system)
      : kind_(*find_step_kind(load.kind)),
        label_(load.identity.label),
        memory_setting_(memory_setting(load.limits)),
        key_(key),
        system_(system) {}

  [[nodiscard]] Error error(std::string what, std::string next) const {
    InstanceIdentity identity;
    identity.label = label_;
    return guard_error({&identity, kStepSlot, step_}, std::move(what), std::move(next));
  }

  [[nodiscard]] Error give_up(const Lost& lost, int tries) const {
    if (lost.is_late) return error(lost.text, "raise plugins.call_timeout or make it faster");
    std::string next = "find the fault with `mortise plugin check FILE`";
    if (!memory_setting_.empty()) next += "; its memory: " + memory_setting_;
    return error(fmt::format("{}, {} times in a row", lost.text, tries), std::move(next));
  }

  // Batches differ a little in size: a new area has room for more than this one.
  Result<> grow(Area& area, size_t bytes, const char* name, SharedMemory::Peer peer) {
    if (area.number > 0 && area.memory.size() >= bytes) return {};
    auto made = SharedMemory::create(name, bytes + bytes / 4, peer, system_);
    if (!made.ok()) made = SharedMemory::create(name, bytes, peer, system_);
    if (!made.ok()) return error(made.error().what, made.error().next);
    area.memory = *std::move(made);
    area.number = ++num_areas_;
    return {};
  }

  // Nothing: the worker ended before it answered, which `lost` describes. The next call gets a new one.
  Result<std::optional<ComputedMessage>> ask(ComputeMessage message, const CallOptions& options,
                                             std::optional<Lost>& lost) {
    Slot& slot = *TRY(supervisor_->wait_idle(kReadyTimeoutMs));
    TRY(grow(output_, message.output_bytes, "mortise-outputs", SharedMemory::Peer::kWrites));
    slot.busy = true;
    auto answer = converse(slot, message, options, lost);
    slot.busy = false;
    if (answer.ok() && *answer) return answer;
    const bool is_gone = slot.channel.closed();
    const WorkerEnd end = supervisor_->end(slot);
    output_ = {};  // whatever the old worker left behind cannot write to the next one's outputs
    if (!answer.ok() && (!is_gone || slot.stray)) lost = Lost{"its worker failed: " + answer.error().to_string()};
    if (!lost) lost = Lost{how_it_ended(end)};
    if (!supervisor_->lost()) TRY(supervisor_->replace(slot));
    return std::optional<ComputedMessage>();
  }

  // "its code was ended by signal 11 (Segmentation fault)", as if it had run in this process.
  static std::string how_it_ended(const WorkerEnd& end) {
    return end.signal != 0 ? "its code was ended by " + end.text
                           : fmt::format("its worker ended in the call ({})", end.text);
  }

  Result<std::optional<ComputedMessage>> converse(Slot& slot, ComputeMessage& message, const CallOptions& options,
                                                  std::optional<Lost>& lost) {
    TRY(state_.bring(*supervisor_, slot));
    TRY(send(slot, message));
    const int64_t limit_ms = limit_of(options);
    const int64_t deadline_ns = system_.monotonic_ns() + (limit_ms + kGraceMs) * kMsInNs;
    const std::atomic<bool>* const cancelled = options.cancelled != nullptr ? options.cancelled : key_.cancelled;
    while (true) {
      int64_t wait_ms = -1;
      if (limit_ms > 0) wait_ms = std::max<int64_t>((deadline_ns - system_.monotonic_ns()) / kMsInNs + 1, 0);
      if (cancelled != nullptr) wait_ms = wait_ms < 0 ? kLookForStopMs : std::min(wait_ms, kLookForStopMs);
      const std::optional<Frame> frame =
          TRY(supervisor_->receive(slot, static_cast<int>(std::min<int64_t>(wait_ms, INT_MAX))));
      if (frame && frame->kind == kComputed) return take_answer(slot, *frame);
      if (frame && frame->kind == kError) return decode_error(frame->body);
      if (frame) TRY(supervisor_->take_message(slot, *frame));
      if (slot.channel.closed()) return std::optional<ComputedMessage>();
      if (cancelled != nullptr && cancelled->load()) head().cancelled.store(true);
      if (limit_ms > 0 && system_.monotonic_ns() >= deadline_ns) {
        lost = Lost{fmt::format("it still runs after its limit of {} ms (plugins.call_timeout); its worker was ended",
                                limit_ms),
                    /*is_late=*/true};
        return std::optional<ComputedMessage>();
      }
    }
  }

  [[nodiscard]] int64_t limit_of(const CallOptions& options) const {
    if (options.timeout_ms <= 0 || key_.call_timeout_ms <= 0) return std::max(options.timeout_ms, key_.call_timeout_ms);
    return std::min(options.timeout_ms, key_.call_timeout_ms);
  }

  StepHead& head() { return *reinterpret_cast<StepHead*>(output_.memory.data()); }

  Result<> send(Slot& slot, ComputeMessage& message) {
    head().cancelled.store(false);
    std::vector<int> fds;
    message.new_input = slot.area_number != input_.number;
    message.new_output = slot.block != output_.number;
    if (message.new_input) fds.push_back(input_.memory.fd());
    if (message.new_output) fds.push_back(output_.memory.fd());
    message.input_bytes = input_.memory.size();
    message.output_bytes = output_.memory.size();
    TRY(slot.channel.send(kCompute, encode(message), fds, kSendTimeoutMs));
    slot.area_number = input_.number;
    slot.block = output_.number;
    return {};
  }

  Result<std::optional<ComputedMessage>> take_answer(Slot& slot, const Frame& frame) {
    ComputedMessage answer;
    TRY(decode(frame.body, answer));
    if (!answer.error && answer.has_state) state_.take(slot, std::move(answer.state));
    return std::optional(std::move(answer));
  }

  const StepKind& kind_;
  std::string label_;
  std::string memory_setting_;
  RunKey key_;
  WorkerSystem& system_;
  std::unique_ptr<Supervisor> supervisor_;
  CarriedState state_;
  Area input_, output_;
  int64_t num_areas_ = 0;
  int64_t step_ = 0;  // step of the current call, for messages
};

}  // namespace

RemoteMaker isolated(IsolationOptions options) {
  if (options.mode == Isolation::kNone) return {};
  return [options = std::move(options)](const PluginRef& ref, const InstanceIdentity& identity,
                                        const RunKey& key) -> Result<std::unique_ptr<RemoteInstance>> {
    const std::optional<WorkerPlace> place = TRY(place_plugin(ref, identity.params, options));
    if (!place) return std::unique_ptr<RemoteInstance>();
    return IsolatedInstance::start(ref, identity, key, *place);
  };
}

}  // namespace mortise
