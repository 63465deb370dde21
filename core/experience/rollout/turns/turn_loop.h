// TurnLoop: the rows of one collection that have several turns, between the rollout backend and the environment.
//
//   begin ----> environment.reset --> request of a turn --> backend --> take() --> environment.step --+
//                                           ^                                                        |
//                                           +---- suffix of the observation (TurnRenderer) <---------+
//                                                                                        or the row ends
// Rows are independent: one whose observation is there is sampled on while others still sample. A turn is a request of
// its own whose prompt is everything so far, so every backend serves. Its tokens are drawn with a seed of the turn's
// (turn_seed), so no random number is used twice. Limits, in the order in which they are looked at: tokens of a turn,
// number of turns, tokens of the row. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/keys/multi_turn.h"
#include "experience/rollout/turns/turn_renderer.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/sampling.h"
#include "plugin/host/kinds/rollout_backend.h"
#include "plugin/worker/episode_runner.h"
#include "text/tools/tool_calls.h"

namespace mortise {

struct RolloutPlan;

// What the turns of a run share.
struct TurnParts {
  MultiTurnConfig config;
  std::unique_ptr<EpisodeRunner> environment;
  TurnRenderer renderer;
  Json tools;                        // that prompts offer; null: none
  int64_t max_prompt_length = 0;     // a prompt with what the environment adds is no longer
  double max_failed_fraction = 0.1;  // share of the rows; above it the run stops
};

// Seed of the requests of a turn, from 0; that of the first turn is the run's own.
[[nodiscard]] uint64_t turn_seed(uint64_t seed, int64_t turn);

class TurnLoop {
 public:
  // Borrows everything. `rows` are the samples of the batch, with prompt_index and sample_index set.
  TurnLoop(TurnParts& parts, const PromptBatch& prompts, const RolloutPlan& plan, const Tokenizer& tokenizer,
           std::vector<Sample>& rows);
  ~TurnLoop();
  TurnLoop(const TurnLoop&) = delete;
  TurnLoop& operator=(const TurnLoop&) = delete;

  void begin(size_t row);
  // A turn of the row; request_id is the row.
  void take(const RolloutSequence& sequence);
  // Answers of the environment; waits for one up to `wait_ms`. An Error ends the run, also if already so many rows have
  // failed that check_failures() would end it.
  Result<> advance(int wait_ms);
  [[nodiscard]] bool waits_for_environment() const { return !parts_.environment->is_idle(); }

  // Requests of the rows that have what their next turn needs. Their pointers are valid until the row's take().
  std::vector<RolloutRequest> take_requests();
  // Rows that have ended since the last call.
  std::vector<size_t> take_finished();
  // After the last row: too many of them failed.
  [[nodiscard]] Result<> check_failures() const;

 private:
  struct Row {
    std::vector<int64_t> context;  // prompt and all that follows
    Sampling sampling;
    int64_t turn = 0;  // turns that were sampled
    int64_t num_observations = 0;
    bool began = false;
    bool has_log_probs = true;
    bool has_calls = false;            // the last turn has calls
    std::optional<TurnEnd> last = {};  // the last turn has been sampled, for this reason
    Json messages = Json::array();
  };

  void answer(EpisodeAnswer answer);
  Result<> continue_row(size_t row, const EpisodeAnswer& answer);
  Result<> start_row(size_t row, const EpisodeAnswer& answer);
  void request_turn(size_t row);
  [[nodiscard]] std::optional<TurnEnd> limit_after(size_t row, int32_t finish_reason) const;
  [[nodiscard]] std::vector<ToolCall> calls_of(size_t row, std::span<const int64_t> ids) const;
  void note_assistant(size_t row, const std::string& text, const std::vector<ToolCall>& calls);
  [[nodiscard]] Result<Json> observed(const std::string& text);
  void append(size_t row, std::span<const int64_t> ids, std::span<const float> log_prob, bool is_sampled);
  [[nodiscard]] TurnEnd end_after(size_t row, bool done) const;
  void finish(size_t row, TurnEnd end);
  void fail(size_t row, const std::string& why);
  [[nodiscard]] bool too_many_failed_of(int64_t num_rows) const;
  [[nodiscard]] int64_t room(size_t row) const;  // tokens that the row may still have
  [[nodiscard]] size_t last_turn_length(size_t row) const;
  [[nodiscard]] const Prompt& prompt_of(size_t row) const;

  TurnParts& parts_;
  const PromptBatch& prompts_;
  const RolloutPlan& plan_;
  const Tokenizer& tokenizer_;
  std::vector<Sample>& samples_;
  std::vector<Row> rows_;
  std::vector<size_t> ready_, finished_;
  int64_t num_begun_ = 0, num_failed_ = 0;
  std::string first_failure_;
};

}  // namespace mortise
