// Loads the plugin of a worker, makes its instance, and answers messages until the trainer hangs up.
#include "plugin/worker/serve.h"

#include <fmt/core.h>

#include <mutex>
#include <optional>

#include "mortise/kinds/environment.h"
#include "plugin/host/kinds/step_call.h"
#include "plugin/host/library.h"

namespace mortise {
namespace {

// What the plugin logs goes to the trainer. One that has ended reads no log.
void send_logs(Channel& channel) {
  set_plugin_log([&channel](int32_t level, const std::string& line) {
    (void)send_to_trainer(channel, kLog, encode(LogMessage{level, line}));
  });
  set_plugin_progress([&channel](const std::string& line) {
    (void)send_to_trainer(channel, kProgress, encode(LogMessage{0, line}));
  });
}

Result<> tell_ready(Channel& channel, PluginServer& server) {
  ReadyMessage ready;
  ready.granularity = server.granularity();
  if (auto state = TRY(server.instance().save_state())) {
    ready.has_state = true;
    ready.state = std::move(*state);
  }
  return send_to_trainer(channel, kReady, encode(ready));
}

Result<> answer(Channel& channel, PluginServer& server, Frame& frame) {
  if (frame.kind == kSaveState) {
    auto saved = server.instance().save_state();
    if (!saved.ok()) return send_to_trainer(channel, kError, encode(saved.error()));
    return send_to_trainer(channel, kState, encode(StateMessage{saved->has_value(), saved->value_or("")}));
  }
  if (frame.kind == kLoadState) {
    const auto loaded = server.instance().load_state(frame.body);
    if (!loaded.ok()) return send_to_trainer(channel, kError, encode(loaded.error()));
    return send_to_trainer(channel, kState, encode(StateMessage{}));
  }
  return server.answer(frame);
}

Result<> run(Channel& channel, PluginServer& server, const LoadMessage& load) {
  set_plugin_threads(static_cast<int>(load.num_threads));
  send_logs(channel);
  const LoadedPlugin plugin = TRY(load_for_worker(load));
  TRY(server.create(plugin, load));
  TRY(tell_ready(channel, server));
  while (auto frame = TRY(channel.receive(-1))) TRY(answer(channel, server, *frame));
  return {};
}

}  // namespace

Result<> send_to_trainer(Channel& channel, uint32_t kind, std::string_view body) {
  static std::mutex mutex;  // which a fork may find locked for ever
  if (!channel.is_own()) return channel.send(kind, body);
  const std::lock_guard lock(mutex);
  return channel.send(kind, body);
}

Result<> PluginServer::unknown_message(const Frame& frame) {
  return Error{ErrorKind::kPlugin, "unknown message " + std::to_string(frame.kind), "worker", ""};
}

Result<LoadedPlugin> load_for_worker(const LoadMessage& load) {
  PackInfo expected;
  expected.path = load.path;
  expected.sha256 = load.sha256;
  const Library* library = TRY(Library::load(expected, /*host_torch=*/""));
  const PluginInfo* plugin = library->info().find_plugin(load.kind, load.name);
  const void* vtable = library->vtable(load.kind, load.name);
  if (plugin == nullptr || vtable == nullptr)
    return Error{ErrorKind::kPlugin, fmt::format("the pack has no {} {}", load.kind, load.name), load.path,
                 "build it again"};
  return LoadedPlugin{&library->info(), plugin, vtable, library->descriptor(load.kind, load.name)};
}

void serve(Channel& channel, const LoadMessage& load, WorkerSystem& system) {
  const bool is_step = find_step_kind(load.kind) != nullptr;
  const std::unique_ptr<PluginServer> server = load.kind == MORTISE_KIND_ENVIRONMENT ? make_episode_server(channel)
                                               : is_step                             ? make_step_server(channel, system)
                                                         : make_reward_server(channel, system);
  const auto served = run(channel, *server, load);
  if (!served.ok() && !channel.closed()) (void)send_to_trainer(channel, kError, encode(served.error()));
}

}  // namespace mortise
