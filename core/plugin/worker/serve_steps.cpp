// A worker of a loss or an estimator: calls `compute` over shared memory, and tells what the call said.
#include <optional>

#include "plugin/host/kinds/step_call.h"
#include "plugin/worker/serve.h"
#include "plugin/worker/shared_memory.h"
#include "plugin/worker/step_area.h"

namespace mortise {
namespace {

class StepServer : public PluginServer {
 public:
  StepServer(Channel& channel, WorkerSystem& system) : channel_(channel), system_(system) {}

  Result<> create(const LoadedPlugin& plugin, const LoadMessage& load) override {
    kind_ = find_step_kind(load.kind);
    RunKey key;
    key.check_writes = load.check_writes;
    key.call_timeout_ms = load.call_timeout_ms;
    key.in_worker = true;
    instance_ = TRY(PluginInstance::create(plugin, load.identity, key));
    return kind_->check_vtable(*instance_);
  }
  PluginInstance& instance() override { return *instance_; }

  Result<> answer(Frame& frame) override {
    if (frame.kind != kCompute) return unknown_message(frame);
    ComputeMessage message;
    TRY(decode(frame.body, message));
    TRY(check_message(*kind_, message));
    TRY(map_areas(message, frame));
    return send_to_trainer(channel_, kComputed, encode(compute(message)));
  }

 private:
  Result<> map_areas(const ComputeMessage& message, Frame& frame) {
    size_t next_fd = 0;
    if (message.new_input && next_fd < frame.fds.size()) {
      const Fd area = std::move(frame.fds[next_fd++]);
      input_ = TRY(SharedMemory::map(area, 0, message.input_bytes, SharedMemory::Peer::kReads, system_));
    }
    if (message.new_output && next_fd < frame.fds.size()) {
      const Fd area = std::move(frame.fds[next_fd++]);
      output_ = TRY(SharedMemory::map(area, 0, message.output_bytes, SharedMemory::Peer::kWrites, system_));
    }
    if (input_.size() >= message.input_bytes && output_.size() >= message.output_bytes) return {};
    return Error{ErrorKind::kPlugin, "asked for a call without the memory of its arrays", "worker", ""};
  }

  ComputedMessage compute(const ComputeMessage& message) {
    const StepCall call = open_call(*kind_, message, input_.data(), output_.data());
    CallOptions options;
    options.timeout_ms = message.timeout_ms;
    options.cancelled = &reinterpret_cast<const StepHead*>(output_.data())->cancelled;
    ComputedMessage answer;
    auto done = kind_->call(*instance_, call, nullptr, options);
    if (done.ok()) {
      answer.metrics = std::move(done->metrics);
      add_state(answer);
    } else {
      answer.error = std::move(done).error();
    }
    return answer;
  }

  void add_state(ComputedMessage& answer) {
    auto saved = instance_->save_state();
    if (!saved.ok()) {
      answer.error = std::move(saved).error();
    } else if (saved->has_value()) {
      answer.has_state = true;
      answer.state = *std::move(*saved);
    }
  }

  Channel& channel_;
  WorkerSystem& system_;
  const StepKind* kind_ = nullptr;
  std::optional<PluginInstance> instance_;
  SharedMemory input_, output_;
};

}  // namespace

std::unique_ptr<PluginServer> make_step_server(Channel& channel, WorkerSystem& system) {
  return std::make_unique<StepServer>(channel, system);
}

}  // namespace mortise
