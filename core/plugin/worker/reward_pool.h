// A reward in its own workers: a crash or a hang costs the worker's current row and nothing else.
//
// Idle workers take pieces of the rows: up to 64 single rows for a row-wise reward, a group, or the whole batch. A
// spare replaces a worker that dies, or that is killed for a row that took too long. The current row becomes NaN with
// its reason, and another worker takes the rows that were left. A reward with state (mortise.state/1) has one worker,
// and its replacement gets the state after the last whole batch. Cost: a copy of the columns, two messages per piece.
// Threading: one thread at a time; it starts none.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin/worker/carried_state.h"
#include "plugin/worker/messages.h"
#include "plugin/worker/piece_queue.h"
#include "plugin/worker/retry_policy.h"
#include "plugin/worker/reward_function.h"
#include "plugin/worker/row_account.h"
#include "plugin/worker/supervisor.h"
#include "plugin/worker/system.h"

namespace mortise {

class RewardPool : public RewardFunction {
 public:
  static Result<std::unique_ptr<RewardFunction>> start(const PluginRef& ref, InstanceIdentity identity,
                                                       const RunKey& key, const WorkerLimits& limits,
                                                       const PoolOptions& options);

  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] Granularity granularity() const override {
    return static_cast<Granularity>(supervisor_->ready().granularity);
  }
  [[nodiscard]] bool works_ahead() const override { return granularity() != Granularity::kBatch; }

  Result<> begin(const ScoreRequest& request) override;
  Result<> add(const RewardBatch& rows) override;
  Result<> advance(int wait_ms) override;
  void close() override;
  [[nodiscard]] bool is_idle() const override { return is_stopping() || (todo_.empty() && at_work_.empty()); }
  [[nodiscard]] bool wants_more() const override { return !is_stopping() && todo_.empty(); }
  [[nodiscard]] bool has_free_worker() const override { return wants_more() && supervisor_->idle_slot() != nullptr; }
  [[nodiscard]] int64_t num_done() const override { return request_.num_rows - account_.num_open(); }
  Result<RewardOutput> finish(MetricSet* metrics) override;

  Result<std::optional<std::string>> save_state() override;
  Result<> load_state(std::string_view bytes) override;

  // Workers that died or were killed so far.
  [[nodiscard]] int64_t num_replaced() const { return num_replaced_; }

 private:
  // A piece in work, by slot.
  struct Work {
    Slot* slot = nullptr;
    RowPiece piece;
    int64_t given_ns = 0;
    std::vector<RowMessage> reports = {};  // reports on its calls, in order
    std::string error = {};                // the worker's own error; it ends next
  };

  explicit RewardPool(WorkerSystem& system) : system_(system), todo_(system) {}
  [[nodiscard]] bool is_stopping() const { return key_.cancelled != nullptr && key_.cancelled->load(); }
  Result<RewardOutput> stop();
  Result<> turn(int timeout_ms);
  Result<> hand_out();
  [[nodiscard]] bool make_room(Slot& slot, const RowPiece& piece);
  Result<> give(Slot& slot, const RowPiece& piece);
  Result<> take_in();
  Result<> take_frame(Slot& slot, const Frame& frame);
  void take_report(const RowPiece& piece, RowMessage& report);
  void take_rows(Work& work);
  [[nodiscard]] std::vector<float> tokens_of(const Work& work, int64_t row) const;
  [[nodiscard]] size_t num_tokens(const RowPiece& piece) const;
  Result<> make_output_area(Slot& slot, const RowPiece& piece);
  void complete(Slot& slot);
  Result<> end_worker(Slot& slot, std::string reason);
  Result<> settle(Slot& slot, const std::string& text, bool may_blame);
  void put_back(RowPiece piece, bool blamed, const std::string& text);
  [[nodiscard]] std::string unit_of(const RowPiece& piece) const;
  Result<> recover();
  Result<> keep_state();
  Result<> enforce_deadlines();
  [[nodiscard]] int64_t row_deadline_ns(const Work& work) const;
  void fail_rows(const RowPiece& piece, int64_t first, int64_t count, int32_t code, const std::string& text);
  void fail_the_rest(int32_t code, const std::string& text);
  [[nodiscard]] int time_to_next_deadline() const;
  Work* work_of(const Slot& slot);

  WorkerSystem& system_;
  std::string label_;
  RunKey key_;
  std::unique_ptr<Supervisor> supervisor_;
  ScoreRequest request_;
  int64_t deadline_ns_ = 0;  // set by close()
  PieceQueue todo_;
  std::vector<Work> at_work_;
  RowAccount account_;
  int64_t num_added_ = 0;                                  // rows of the batch
  std::vector<std::pair<int64_t, MetricRecord>> metrics_;  // with the first row of the call that gave it
  Slot* last_slot_ = nullptr;
  CarriedState state_;
  BackOff memory_{10, 1'000};  // pause after an output area that could not be made
  int64_t num_replaced_ = 0;
  int64_t cpu_ms_ = 0;  // limit of a call
  bool gives_tokens_ = false;
};

}  // namespace mortise
