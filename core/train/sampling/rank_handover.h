// RankHandover: how ranks hand over prompts to each other while they sample (PromptHandover), by counters and notes.
//
// A rank that asks draws the next number. A rank that has prompts draws the next number to answer, and leaves a note for the
// rank that asked under it. So each request is answered once, and no rank needs to know which others have free workers.
// Cost: six messages to the store of the ranks for a prompt. While a rank looks in vain, it looks less and less often.
// Thread rule: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dist/communicator.h"
#include "experience/reward/shared_prompts.h"

namespace mortise {

class RankHandover : public PromptHandover {
 public:
  // Every rank makes it. `stage`: a literal, for errors. `pause`: after a look in vain, the first time; up to 8 times as long
  // later.
  RankHandover(Communicator& ranks, std::string_view stage, std::chrono::milliseconds pause);
  // Looks of all ranks together keep the store busy for a few percent of the time at most, however many ranks there are.
  static std::chrono::milliseconds pause_of(int num_ranks);

  Result<bool> is_asked(bool has_prompts) override;
  Result<> answer(const std::string& rows) override;
  Result<std::optional<std::string>> ask(bool wants) override;
  Result<> close() override;

 private:
  // When to look again.
  class Pace {
   public:
    explicit Pace(std::chrono::milliseconds pause) : first_(pause), pause_(pause) {}
    [[nodiscard]] bool is_due() const { return Clock::now() >= next_; }
    void found();
    void found_nothing();

   private:
    using Clock = std::chrono::steady_clock;
    std::chrono::milliseconds first_, pause_;
    Clock::time_point next_{};
  };
  [[nodiscard]] std::string name(std::string_view what) const;
  [[nodiscard]] std::string note(int64_t number) const;
  void forget_own();

  Communicator* ranks_;
  std::string_view stage_;
  int64_t number_;
  Pace asking_, answering_;
  std::optional<int64_t> asked_;    // the number of this rank's request that has no answer yet
  std::optional<int64_t> answers_;  // the number of the request that this rank answers, which may not be there yet
  int64_t num_answered_ = 0;        // requests that have a rank to answer them, as far as this one knows
};

}  // namespace mortise
