// CarriedRows: rows of finished steps that wait for an update, with all their columns (actor.carry_rows). An update may
// then hold the end of one step's rows and the beginning of the next one's. They are part of every checkpoint.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "foundation/base/stateful.h"
#include "foundation/batch/step_table.h"

namespace mortise {

class CarriedRows : public Stateful {
 public:
  [[nodiscard]] int64_t size() const { return table_.num_rows(); }

  // Some rows of an update, copied. Places 0 .. size() - 1 are the rows that wait, the next ones the rows of `step`. A
  // place may come twice.
  [[nodiscard]] StepTable take(const StepTable& step, std::span<const int64_t> places) const;
  // Have the rows that wait what updates read of `step`: these columns, as far as the step has them, and kept tokens as it
  // has? Settings may have changed on a resume.
  [[nodiscard]] bool fit(const StepTable& step, std::span<const std::string> columns) const;
  // Rows that wait come first, each group of them together, then those of the step.
  void sort_by_group(std::vector<int64_t>& places) const;
  // From now on the rows at these places wait, in this order. Copies their ids.
  void keep(const StepTable& step, std::span<const int64_t> places);

  [[nodiscard]] std::string state_name() const override { return "actor.carry_rows"; }
  [[nodiscard]] bool may_be_missing() const override { return true; }  // --allow-change may switch it on
  Result<> save_state(StateWriter& writer) const override;
  Result<> load_state(StateReader& reader) override;

 private:
  [[nodiscard]] std::vector<TableRow> owned_rows(std::span<const int64_t> groups) const;

  std::vector<std::vector<int64_t>> prompts_, responses_;  // the ids of the table's rows
  StepTable table_;
};

}  // namespace mortise
