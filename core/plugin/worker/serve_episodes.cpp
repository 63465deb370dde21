// A worker of an environment: one episode after the other, and an answer to the trainer after each.
#include <optional>

#include "plugin/host/kinds/environment.h"
#include "plugin/worker/episode_messages.h"
#include "plugin/worker/serve.h"

namespace mortise {
namespace {

class EpisodeServer : public PluginServer {
 public:
  explicit EpisodeServer(Channel& channel) : channel_(channel) {}

  Result<> create(const LoadedPlugin& plugin, const LoadMessage& load) override {
    environment_ = TRY(Environment::create(plugin, load.identity, RunKey{0, nullptr, load.check_writes}));
    return cpu_.start(load.limits.cpu_ms);
  }
  PluginInstance& instance() override { return environment_->instance(); }
  [[nodiscard]] int64_t granularity() const override { return environment_->keeps_episodes() ? 1 : 0; }

  Result<> answer(Frame& frame) override {
    if (frame.kind == kDescribe) return send_to_trainer(channel_, kDescription, TRY(environment_->description()));
    if (frame.kind == kReset) {
      ResetMessage message;
      TRY(decode(frame.body, message));
      return answer_each(std::span<const EpisodeStart>(message.starts), message.timeout_ms,
                         [&](auto one, const CallOptions& options) { return environment_->reset(one, options); });
    }
    if (frame.kind == kAct) {
      ActMessage message;
      TRY(decode(frame.body, message));
      return answer_each(std::span<const EpisodeAction>(message.actions), message.timeout_ms,
                         [&](auto one, const CallOptions& options) { return environment_->act(one, options); });
    }
    if (frame.kind != kClose) return unknown_message(frame);
    CloseMessage message;
    TRY(decode(frame.body, message));
    environment_->close(message.episodes, message.step);
    return {};
  }

 private:
  // One call per episode, so that a crash or a hang has the name of the one that caused it.
  template <class T, class F>
  Result<> answer_each(std::span<const T> episodes, int64_t timeout_ms, const F& ask) {
    CallOptions options;
    options.timeout_ms = timeout_ms;
    for (size_t i = 0; i < episodes.size(); ++i) {
      cpu_.begin_call();
      const std::vector<EpisodeAnswer> answers = ask(episodes.subspan(i, 1), options);
      cpu_.end_call();
      TRY(send_to_trainer(channel_, kAnswer, encode(answers.front())));
    }
    return {};
  }

  Channel& channel_;
  std::optional<Environment> environment_;
  CpuWatch cpu_;
};

}  // namespace

std::unique_ptr<PluginServer> make_episode_server(Channel& channel) { return std::make_unique<EpisodeServer>(channel); }

}  // namespace mortise
