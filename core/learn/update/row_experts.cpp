// See row_experts.h.
#include "learn/update/row_experts.h"

#include <cstring>

#include "plugin/worker/channel.h"

namespace mortise {

void RowExperts::note(std::span<const int64_t> rows, const ExpertChoices& experts) {
  for (size_t i = 0; i < rows.size() && !experts.empty(); ++i) {
    const auto taken = experts.of_row(static_cast<int64_t>(i));
    rows_[static_cast<size_t>(rows[i])].assign(taken.begin(), taken.end());
  }
}

Result<ExpertChoices> RowExperts::of_all_ranks(Communicator& ranks) {
  Encoder own;
  for (const auto& row : rows_) own.text({reinterpret_cast<const char*>(row.data()), row.size() * sizeof(uint16_t)});
  for (const std::string& bytes : TRY(ranks.exchange(own.bytes(), "experts of the rows"))) {
    Decoder in(bytes);
    for (std::vector<uint16_t>& row : rows_) {
      const std::string taken = in.text();
      if (taken.empty()) continue;  // another rank has it
      row.resize(taken.size() / sizeof(uint16_t));
      std::memcpy(row.data(), taken.data(), row.size() * sizeof(uint16_t));
    }
    if (!in.done()) return Error{ErrorKind::kInternal, "the experts of another rank's rows cannot be read", "", ""};
  }
  ExpertChoices out;
  for (int64_t row = 0; row < table_->num_rows(); ++row) {
    const TableRow& from = table_->row(row);
    out.append(rows_[static_cast<size_t>(row)],
               static_cast<int64_t>(from.prompt_ids.size() + from.response_ids.size()));
  }
  return out;
}

}  // namespace mortise
