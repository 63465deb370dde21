// RowExperts: the experts that the rows of a table took in a pass whose micro-batches the ranks share. Private to this
// folder. Thread rule: one thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "foundation/batch/step_table.h"

namespace mortise {

class RowExperts {
 public:
  explicit RowExperts(const StepTable& table) : table_(&table), rows_(static_cast<size_t>(table.num_rows())) {}

  // `rows` of the table, in the order of `experts`.
  void note(std::span<const int64_t> rows, const ExpertChoices& experts);
  // All rows of the table. Every rank.
  Result<ExpertChoices> of_all_ranks(Communicator& ranks);

 private:
  const StepTable* table_;
  std::vector<std::vector<uint16_t>> rows_;
};

}  // namespace mortise
