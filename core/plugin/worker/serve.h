// A worker: holds one plugin instance and answers what the trainer asks of it, until its connection ends.
//
// Threading: the single thread of the process; a plugin may start others.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "plugin/host/registry.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/system.h"

namespace mortise {

// What a worker does that depends on the kind of its plugin.
class PluginServer {
 public:
  virtual ~PluginServer() = default;
  virtual Result<> create(const LoadedPlugin& plugin, const LoadMessage& load) = 0;
  virtual PluginInstance& instance() = 0;
  // How many rows the trainer gives a reward at once.
  [[nodiscard]] virtual int64_t granularity() const { return 0; }
  // A message of the trainer about work. An error ends the worker.
  virtual Result<> answer(Frame& frame) = 0;

 protected:
  static Result<> unknown_message(const Frame& frame);
};

// Serves a reward, which gets pieces of rows.
std::unique_ptr<PluginServer> make_reward_server(Channel& channel, WorkerSystem& system);
// Serves a loss or an estimator, which gets calls of `compute`.
std::unique_ptr<PluginServer> make_step_server(Channel& channel, WorkerSystem& system);
// Serves an environment, which plays episodes.
std::unique_ptr<PluginServer> make_episode_server(Channel& channel);

// Sends a message from any thread: a plugin may log from its own.
Result<> send_to_trainer(Channel& channel, uint32_t kind, std::string_view body);

// Runs the pack named in `load` out of the library cache of this process. Returns when the trainer has hung up.
void serve(Channel& channel, const LoadMessage& load, WorkerSystem& system);

// The pack of `load`, in memory; verified against the hash that the trainer saw.
Result<LoadedPlugin> load_for_worker(const LoadMessage& load);

}  // namespace mortise
