// Makes the runner of an environment, and calls one in this process.
#include "plugin/worker/episode_runner.h"

#include <deque>
#include <set>
#include <utility>
#include <variant>

#include "plugin/worker/episode_pool.h"

namespace mortise {
namespace {

class LocalEpisodes : public EpisodeRunner {
 public:
  LocalEpisodes(Environment environment, std::string description)
      : environment_(std::move(environment)), description_(std::move(description)) {}

  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] const std::string& description() const override { return description_; }
  void begin(EpisodeStart start) override { todo_.emplace_back(std::move(start)); }
  void act(EpisodeAction action) override { todo_.emplace_back(std::move(action)); }

  Result<> advance(int /*wait_ms*/, const Sink& sink) override {
    for (std::deque<Call> calls = std::exchange(todo_, {}); !calls.empty(); calls.pop_front()) {
      EpisodeAnswer answer;
      if (const auto* start = std::get_if<EpisodeStart>(&calls.front())) {
        step_ = start->step;
        answer = environment_.reset({start, 1}, {}).front();
      } else {
        answer = environment_.act({&std::get<EpisodeAction>(calls.front()), 1}, {}).front();
      }
      open_.insert(answer.episode);
      sink(std::move(answer));
    }
    return {};
  }
  [[nodiscard]] bool is_idle() const override { return todo_.empty(); }
  Result<> close() override {
    todo_.clear();
    const std::vector<int64_t> episodes(open_.begin(), open_.end());
    environment_.close(episodes, step_);
    open_.clear();
    return {};
  }

 private:
  using Call = std::variant<EpisodeStart, EpisodeAction>;
  Environment environment_;
  std::string description_;
  std::string label_ = environment_.instance().label();
  std::deque<Call> todo_;
  std::set<int64_t> open_;
  int64_t step_ = 0;
};

}  // namespace

Result<std::unique_ptr<EpisodeRunner>> make_episode_runner(PluginRegistry& registry, std::string_view name,
                                                           const nlohmann::ordered_json& params, const RunKey& key,
                                                           const IsolationOptions& options, int64_t timeout_ms) {
  const PluginRef ref = TRY(registry.find(MORTISE_KIND_ENVIRONMENT, name));
  if (auto place = TRY(place_plugin(ref, params, options))) {
    InstanceIdentity identity = TRY(PluginInstance::identify(ref, params, key));
    return EpisodePool::start(ref, std::move(identity), key, place->limits, place->pool, timeout_ms);
  }
  Environment environment = TRY(Environment::create(registry, name, params, key));
  std::string description = TRY(environment.description());
  return std::unique_ptr<EpisodeRunner>(
      std::make_unique<LocalEpisodes>(std::move(environment), std::move(description)));
}

}  // namespace mortise
