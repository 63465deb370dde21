// An environment in its own workers: a crash or a hang costs the episodes of one worker, and the run continues.
//
// Each of a few lanes has a worker. An episode stays in the lane that began it if the environment keeps episodes; else
// any lane takes any call. A worker gets a few calls at once and answers them one by one, so the call that it dies at
// is known. That episode fails with the reason. Other episodes that lived in the worker are lost too, with a reason
// that says so; calls that it had not reached go to another worker. Threading: one thread at a time; it starts none.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "plugin/worker/episode_runner.h"
#include "plugin/worker/supervisor.h"

namespace mortise {

class EpisodePool : public EpisodeRunner {
 public:
  static Result<std::unique_ptr<EpisodeRunner>> start(const PluginRef& ref, InstanceIdentity identity,
                                                      const RunKey& key, const WorkerLimits& limits,
                                                      const PoolOptions& options, int64_t timeout_ms);

  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] const std::string& description() const override { return description_; }
  void begin(EpisodeStart start) override { shared_.emplace_back(std::move(start)); }
  void act(EpisodeAction action) override;
  Result<> advance(int wait_ms, const Sink& sink) override;
  [[nodiscard]] bool is_idle() const override;
  Result<> close() override;

 private:
  using Call = std::variant<EpisodeStart, EpisodeAction>;
  struct Lane {
    Slot* slot = nullptr;      // null: it gets one when it needs it
    std::deque<Call> own;      // calls of its episodes
    std::deque<Call> in_work;  // that the worker has, in order
    std::set<int64_t> open;    // its episodes
    int64_t since_ns = 0;      // when the worker began with the first of in_work
    size_t num_pending = 0;    // bytes of an answer that had come when the time limit was last looked at
    int64_t step = 0;          // step of the last call, for messages
  };

  EpisodePool(std::string label, int64_t timeout_ms, WorkerSystem& system)
      : label_(std::move(label)), timeout_ms_(timeout_ms), system_(system) {}
  [[nodiscard]] static int64_t episode_of(const Call& call);
  Result<> ask_description();
  Result<> hand_out(const Sink& sink);
  Result<> give(Lane& lane);
  std::deque<Call> next_calls(Lane& lane);
  Result<> take_in(const Sink& sink);
  Result<bool> take_frames(Lane& lane, const Sink& sink);
  void take_answer(Lane& lane, const Frame& frame, const Sink& sink);
  Result<> turn_other_slots();
  Result<> enforce_deadlines(const Sink& sink);
  Result<> end_lane(Lane& lane, const std::string& reason, const Sink& sink);
  void settle(Lane& lane, const std::string& reason, bool may_blame, const Sink& sink);
  void fail(Lane& lane, int64_t episode, const std::string& why, const Sink& sink);
  Result<> recover(const Sink& sink);
  [[nodiscard]] int time_to_next_deadline(int wait_ms) const;

  std::string label_;
  std::string description_;
  int64_t timeout_ms_;
  WorkerSystem& system_;
  bool keeps_episodes_ = false;
  std::unique_ptr<Supervisor> supervisor_;
  std::vector<Lane> lanes_;
  std::deque<Call> shared_;            // calls that any lane may take
  std::map<int64_t, size_t> lane_of_;  // lanes of open episodes that live in a worker
  std::set<int64_t> lost_;             // open episodes whose worker has ended
};

}  // namespace mortise
