// RowFeed: the prompts of a data set in the order of an epoch, from any place on. PromptSource cuts batches from it.
//
// The order is a function of (seed, epoch), so that a resume needs the place alone. With a curriculum by reward it also
// depends on the rewards before the epoch, which the state holds. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experience/data/dataset.h"
#include "experience/data/row_schedule.h"
#include "foundation/base/result.h"
#include "foundation/base/stateful.h"
#include "foundation/batch/prompt_batch.h"

namespace mortise {

// How the rows of an epoch are ordered.
struct RowOrder {
  bool shuffle = true;
  uint64_t seed = 0;
  std::vector<double> weights{};  // one per entry of data.train_files; empty: one list
  StoppingStrategy stopping = StoppingStrategy::kFirstExhausted;
  std::optional<std::string> curriculum_key{};  // rows sorted by this column of numbers
  CurriculumOrder curriculum_order = CurriculumOrder::kAscending;
  bool curriculum_by_reward = false;   // rows sorted by their mean reward so far, new in each epoch
  int64_t shuffle_buffer_size = 1000;  // rows, where they are streamed
};

class RowFeed {
 public:
  virtual ~RowFeed() = default;
  [[nodiscard]] virtual int64_t rows_per_epoch() const = 0;
  // To the place before this row of this epoch. `saved`: what save_state() wrote there; null: only row 0 is allowed.
  virtual Result<> go_to(int64_t epoch, int64_t row, StateReader* saved) = 0;
  // The next rows of the epoch. Precondition: it has as many.
  virtual Result<std::vector<Prompt>> take(int64_t num_rows) = 0;
  virtual void save_state(StateWriter& writer) const = 0;
  // Rewards of completions of a row of the data set, for a curriculum by them.
  virtual void note_rewards(int64_t row, double sum, int64_t count) {
    (void)row;
    (void)sum;
    (void)count;
  }
};

// Over rows in memory. Refuses rows without a number in the curriculum's column. Borrows `dataset`.
Result<std::unique_ptr<RowFeed>> make_memory_feed(const Dataset& dataset, const RowOrder& order);
// Over rows that are read again from the files in each epoch (data.streaming). Borrows `dataset`.
Result<std::unique_ptr<RowFeed>> make_stream_feed(const Dataset& dataset, const RowOrder& order);

// The sources that the schedule chooses from.
Result<RowSchedule> make_schedule(const Dataset& dataset, const RowOrder& order);

}  // namespace mortise
