// replay: recorded completions instead of generated ones.
//
// `path` is a JSON Lines file in one of three forms, in the order of the requests:
//   a line per prompt  {"prompt_token_ids": [..], "completions": [[..], ..], "finish_reasons": ["stop", ..], ...}
//   what `mortise generate` writes: the same, but each completion is an object with token_ids, finish_reason, log_probs
//   a completion dump of a run (trainer.rollout_data_dir; the steps' files joined): a line per completion
// Rows with several turns come from a completion dump only. Each request of a turn gets the tokens of that turn. The
// tools or the environment of the run answer them again, and must give the recorded observations: the request's prompt
// is compared with the row up to there. A row that failed before its first turn has no request. Its line is skipped, at
// the latest when its step ends. All other rows and turns of a step must have been asked for by then.
// log_probs (and filtered_log_probs) are reported if the file has them. Other keys are ignored, so that the same file
// can be the data set. The prompt ids must equal the requested ones, and the number of completions must equal the
// number of samples. After the last line the file starts again (the next epoch). The position in the file is state and
// survives a resume. Cost: one prompt's completions in memory per outstanding request.
#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include <mortise/cpp/mortise.hpp>

#include "replay_line.h"

namespace {

// A row with several turns, as far as it is answered.
struct TurnRow {
  mortise::ReplayLine line;
  std::int64_t number = 0;  // the line in the file
  std::size_t next = 0;     // first token of the next turn
};

struct Sequence {
  std::int64_t request_id, sample_index;
  mortise::ReplayCompletion completion;
};

class Replay : public mortise::RolloutBackend {
 public:
  static constexpr const char* summary =
      "recorded completions from a JSONL file: of a replay, of `mortise generate`, or of a run";

  std::string path = param<std::string>("path", mortise::required,
                                        "JSONL file with the completions of each prompt, in the order of use")
                         .file();

  void setup(mortise::Call) override {
    open();
    std::string line;
    if (!std::getline(file_, line)) mortise::fail(MORTISE_DATA_LOSS, path + ": this is a folder or an empty file");
    const auto first = mortise::read_replay_line(line);
    has_turns_ = first && first->has_turns;
    open();
  }

  void set_version(std::int64_t version, mortise::Call) override { version_ = version; }

  std::uint64_t submit(mortise::Span<const mortise_rollout_request* const> requests, mortise::Call) override {
    for (const mortise_rollout_request* request : requests) take(*request);
    return std::uint64_t(requests.size());
  }

  std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t, mortise::Call) override {
    while (!ready_.empty()) {
      const Sequence& s = ready_.front();
      mortise_rollout_sequence out{};
      out.struct_size = sizeof out;
      out.finish_reason = s.completion.finish_reason;
      out.request_id = s.request_id;
      out.sample_index = s.sample_index;
      out.weight_version = version_;
      out.num_ids = std::int64_t(s.completion.ids.size());
      out.ids = s.completion.ids.data();
      out.log_prob = data_or_null(s.completion.log_prob);
      out.filtered_log_prob = data_or_null(s.completion.filtered_log_prob);
      const bool stop = sink.sequence(sink.context, &out) != 0;  // it has taken this one in any case
      ready_.pop_front();
      if (stop) break;
    }
    return ready_.size();
  }

  void abort(std::int64_t request_id, mortise::Call) override {
    for (Sequence& s : ready_) {
      if (request_id == -1 || s.request_id == request_id) s.completion.finish_reason = MORTISE_FINISH_ABORT;
    }
  }

  const void* extension(const char* id) override;

  // The lines read. A place is saved between steps, where no turn is left.
  std::int64_t place() {
    finish_step();
    return lines_read_;
  }
  // Goes to where `lines` lines have been read; they were valid when the state was saved.
  void seek(std::int64_t lines) {
    open();
    lines_read_ = 0;
    step_ = line_step_ = -1;
    turn_rows_.clear();
    std::string line;
    while (lines_read_ < lines) next_line(line);
  }

 private:
  static const float* data_or_null(const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
  }

  void open() {
    file_.close();
    file_.clear();
    file_.open(path);
    if (!file_) mortise::fail(MORTISE_NOT_FOUND, "cannot read rollout.replay.path '" + path + "'");
    line_ = 0;
    ahead_.reset();
  }

  void next_line(std::string& line) {
    if (ahead_) {
      line = *std::exchange(ahead_, std::nullopt);
    } else if (!std::getline(file_, line)) {
      open();
      if (!std::getline(file_, line)) mortise::fail(MORTISE_DATA_LOSS, path + ": the file is empty");
    }
    ++line_;
    ++lines_read_;
  }

  [[noreturn]] void refuse(const std::string& why) const { refuse(line_, why); }
  [[noreturn]] void refuse(std::int64_t line, const std::string& why) const {
    mortise::fail(MORTISE_INVALID_ARGUMENT, path + ":" + std::to_string(line) + ": " + why);
  }

  void check_prompt(const std::vector<std::int64_t>& have, const mortise_rollout_request& request) const {
    const mortise::Span<const std::int64_t> asked(request.prompt_ids, request.num_prompt_ids);
    const auto length = std::min<std::int64_t>(std::int64_t(have.size()), asked.size());
    for (std::int64_t i = 0; i < length; ++i) {
      if (have[std::size_t(i)] == asked[i]) continue;
      refuse("the prompt differs from the one asked for at token " + std::to_string(i) + " (" +
             std::to_string(have[std::size_t(i)]) + " here, " + std::to_string(asked[i]) +
             " asked for); are the prompts used in the order of this file?");
    }
    if (std::int64_t(have.size()) != asked.size()) {
      refuse("the prompt has " + std::to_string(have.size()) + " tokens, the one asked for " +
             std::to_string(asked.size()) + "; are the prompts used in the order of this file?");
    }
  }

  // The next line, if it is one for this request.
  mortise::ReplayLine read_row(const mortise_rollout_request& request) {
    std::string line;
    next_line(line);
    auto row = mortise::read_replay_line(line);
    if (!row) refuse(row.fault());
    check_prompt(row->prompt_ids, request);
    return *std::move(row);
  }

  // A completion dump has a line per completion: the rest of the group follows.
  void read_group(mortise::ReplayLine& row, const mortise_rollout_request& request) {
    for (std::int64_t i = 0;; ++i) {
      if (row.sample_index != i) {
        refuse("this is completion " + std::to_string(row.sample_index) + " of its prompt, not " + std::to_string(i) +
               "; rollout.n is " + std::to_string(request.num_samples) +
               ": is it that of the run that wrote the file?");
      }
      if (i + 1 == request.num_samples) return;
      mortise::ReplayLine next = read_row(request);
      if (next.sample_index < 0) refuse("this line is not of a completion dump, unlike the one before");
      row.sample_index = next.sample_index;
      row.completions.push_back(std::move(next.completions.front()));
    }
  }

  // The line after the last one read, which stays the next one. Nothing: the file ends.
  const std::string* look_ahead() {
    std::string line;
    if (!ahead_ && std::getline(file_, line)) ahead_ = std::move(line);
    return ahead_ ? &*ahead_ : nullptr;
  }

  // All turns of the step have been asked for. Lines of its last rows that have no turns were not read yet.
  void finish_step() {
    for (const auto& [row, left] : turn_rows_)
      refuse(
          left.number,
          "the run asked for fewer turns of this row than it has; are the settings of rollout.multi_turn those of the "
          "run that wrote the file?");
    if (line_step_ < 0) return;
    while (const std::string* text = look_ahead()) {
      const auto line = mortise::read_replay_line(*text);
      if (!line || !line->has_turns || line->step != line_step_) return;
      if (!line->completions.front().ids.empty())
        refuse(line_ + 1, "the run did not ask for this row of the file's step " + std::to_string(line_step_) +
                              "; are data.train_batch_size, rollout.n and the environment those of the run that wrote "
                              "the file?");
      std::string skipped;
      next_line(skipped);
    }
  }

  // Lines of a step are its rows in order, and requests come in any order.
  TurnRow& row_of(const mortise_rollout_request& request) {
    if (request.step != step_) {
      finish_step();
      step_ = request.step;
      rows_read_ = 0;
    }
    for (; rows_read_ <= request.first_row_id; ++rows_read_) {
      std::string text;
      next_line(text);
      auto line = mortise::read_replay_line(text);
      if (!line) refuse(line.fault());
      if (!line->has_turns) refuse("the row has no turns, unlike those before");
      line_step_ = line->step;
      if (!line->completions.front().ids.empty()) turn_rows_[rows_read_] = {*std::move(line), line_};
    }
    const auto found = turn_rows_.find(request.first_row_id);
    if (found == turn_rows_.end())
      refuse("row " + std::to_string(request.first_row_id) + " of step " + std::to_string(step_) +
             " has no further turn in this file");
    return found->second;
  }

  // The row up to its next turn must be the prompt that is asked for.
  void check_turn(const TurnRow& row, const mortise_rollout_request& request) const {
    const mortise::Span<const std::int64_t> asked(request.prompt_ids, request.num_prompt_ids);
    std::vector<std::int64_t> have = row.line.prompt_ids;
    const std::vector<std::int64_t>& ids = row.line.completions.front().ids;
    have.insert(have.end(), ids.begin(), ids.begin() + std::ptrdiff_t(row.next));
    if (std::equal(have.begin(), have.end(), asked.begin(), asked.end())) return;
    const auto differing = std::mismatch(have.begin(), have.end(), asked.begin(), asked.end());
    refuse(row.number, "the conversation differs from the one asked for at token " +
                           std::to_string(differing.first - have.begin()) + " of " + std::to_string(have.size()) +
                           "; are the prompts used in the order of this file, and do the tools answer as they did?");
  }

  void take_turn(const mortise_rollout_request& request) {
    if (request.num_samples != 1)
      refuse(line_ + 1,
             "the rows have several turns, and the run's have one; set rollout.multi_turn as it was for the file");
    TurnRow& row = row_of(request);
    check_turn(row, request);
    const mortise::ReplayCompletion& whole = row.line.completions.front();
    const auto sampled = whole.is_sampled.begin();
    const auto begin = std::ptrdiff_t(row.next);
    const auto end = std::find(sampled + begin, whole.is_sampled.end(), false) - sampled;
    const auto next = std::find(sampled + end, whole.is_sampled.end(), true) - sampled;
    const auto longest = request.sampling != nullptr ? request.sampling->max_new_tokens : INT64_MAX;
    if (end - begin > longest) {
      refuse(row.number, "a turn has " + std::to_string(end - begin) + " tokens, the longest one asked for " +
                             std::to_string(longest) + "; raise rollout.multi_turn.max_turn_length or the lengths");
    }
    mortise::ReplayCompletion turn;
    const auto copy = [&](const auto& from, auto& to) {
      if (!from.empty()) to.assign(from.begin() + begin, from.begin() + end);
    };
    copy(whole.ids, turn.ids);
    copy(whole.log_prob, turn.log_prob);
    copy(whole.filtered_log_prob, turn.filtered_log_prob);
    // A row may end by its length or by its environment after a turn that ended by itself.
    const bool is_last = next == std::ptrdiff_t(whole.ids.size());
    const bool is_cut = whole.finish_reason == MORTISE_FINISH_LENGTH && end - begin == longest;
    const bool is_aborted = whole.finish_reason == MORTISE_FINISH_ABORT && !whole.environment_failed;
    turn.finish_reason = is_last && (is_cut || is_aborted) ? whole.finish_reason : MORTISE_FINISH_STOP;
    ready_.push_back({request.request_id, 0, std::move(turn)});
    row.next = std::size_t(next);
    if (is_last) turn_rows_.erase(request.first_row_id);
  }

  void take(const mortise_rollout_request& request) {
    if (has_turns_) return take_turn(request);
    mortise::ReplayLine row = read_row(request);
    if (row.sample_index >= 0) read_group(row, request);
    if (std::int64_t(row.completions.size()) != request.num_samples) {
      refuse("completions must be a list of rollout.n = " + std::to_string(request.num_samples) + ", but it has " +
             std::to_string(row.completions.size()));
    }
    const auto longest = request.sampling != nullptr ? request.sampling->max_new_tokens : INT64_MAX;
    for (std::size_t i = 0; i < row.completions.size(); ++i) {
      mortise::ReplayCompletion& completion = row.completions[i];
      if (std::int64_t(completion.ids.size()) > longest) {
        refuse("completion " + std::to_string(i) + " has " + std::to_string(completion.ids.size()) +
               " tokens, the longest one asked for " + std::to_string(longest) +
               "; raise data.max_response_length (or rollout.response_length)");
      }
      ready_.push_back({request.request_id, std::int64_t(i), std::move(completion)});
    }
  }

  std::ifstream file_;
  std::int64_t line_ = 0;        // line of the file, from 1
  std::int64_t lines_read_ = 0;  // lines that the run has read
  std::int64_t version_ = 0;
  std::optional<std::string> ahead_;           // the next line, if it has been looked at
  bool has_turns_ = false;                     // the file is of rows with several turns
  std::int64_t step_ = -1, rows_read_ = 0;     // the step whose rows are read, and how many of them
  std::int64_t line_step_ = -1;                // the step that the last line read names; -1: none
  std::map<std::int64_t, TurnRow> turn_rows_;  // by row of the step, until the last turn is asked for
  std::deque<Sequence> ready_;
};

// The state is the number of lines read, as eight bytes, least significant first.
std::int32_t save(void* self, mortise_call* call, const mortise_state_sink* sink) noexcept {
  return mortise::detail::run<Replay>(self, call, [&](Replay& replay, mortise::Call) {
    const auto lines = std::uint64_t(replay.place());
    std::uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = std::uint8_t(lines >> (8 * i));
    sink->write(sink->context, {bytes, sizeof bytes});
  });
}
std::int32_t load(void* self, mortise_call* call, mortise_bytes bytes) noexcept {
  return mortise::detail::run<Replay>(self, call, [&](Replay& replay, mortise::Call) {
    if (bytes.size != 8) mortise::fail(MORTISE_DATA_LOSS, "the saved place in the replay file is damaged");
    std::uint64_t lines = 0;
    for (int i = 0; i < 8; ++i) lines |= std::uint64_t(static_cast<const std::uint8_t*>(bytes.data)[i]) << (8 * i);
    replay.seek(std::int64_t(lines));
  });
}
constexpr mortise_state state = {sizeof(mortise_state), 0, save, load};

const void* Replay::extension(const char* id) { return std::string_view(id) == MORTISE_EXT_STATE ? &state : nullptr; }

}  // namespace

MORTISE_ROLLOUT_BACKEND("replay", Replay)
