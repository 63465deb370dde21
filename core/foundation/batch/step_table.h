// StepTable: the rows of a step and what is known of them, column by column (columns.h).
//
// Rows are in prompt-major order; B rows have N response tokens, which lie flat: row i is the tokens row_offsets[i] ..
// row_offsets[i+1]. Stages add columns. Consumers take a view, or the columns of some rows as a table of its own.
// Ids are borrowed from the batches of prompts and samples, which must outlive the table. Thread rule: one thread.
#pragma once

#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "foundation/base/stateful.h"
#include "foundation/batch/columns.h"
#include "foundation/batch/expert_choices.h"
#include "foundation/batch/kept_tokens.h"
#include "foundation/batch/prompt_batch.h"
#include "foundation/batch/sample_batch.h"
#include "foundation/batch/step_view.h"

namespace mortise {

struct TableRow {
  std::span<const int64_t> prompt_ids, response_ids;
  int64_t group = 0;  // rows of one prompt share it
};

class StepTable {
 public:
  StepTable() = default;
  // row_id: the rows' places in what they are part of; empty: 0, 1, 2 ...
  explicit StepTable(std::vector<TableRow> rows, std::vector<int64_t> row_id = {});
  StepTable(StepTable&&) = default;
  StepTable& operator=(StepTable&&) = default;

  [[nodiscard]] int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  [[nodiscard]] int64_t num_tokens() const { return row_offsets_.back(); }
  [[nodiscard]] const TableRow& row(int64_t row) const { return rows_[static_cast<size_t>(row)]; }
  [[nodiscard]] int64_t row_tokens(int64_t row) const {
    return row_offsets_[static_cast<size_t>(row) + 1] - row_offsets_[static_cast<size_t>(row)];
  }
  [[nodiscard]] std::span<const int64_t> row_offsets() const { return row_offsets_; }
  [[nodiscard]] std::span<const int64_t> group_index() const { return group_index_; }
  [[nodiscard]] Layout layout() const { return {row_offsets_, row_id_, group_index_}; }

  // The column's values; empty if it is absent.
  template <class C>
  [[nodiscard]] std::span<const typename C::Value> get() const {
    const Stored* stored = find(C::name);
    return stored == nullptr ? std::span<const typename C::Value>{} : values_of<typename C::Value>(*stored);
  }
  template <class C>
  [[nodiscard]] bool has() const {
    return find(C::name) != nullptr;
  }
  // The tokens of one row of a column that is there.
  template <class C>
  [[nodiscard]] std::span<const typename C::Value> of_row(int64_t row) const {
    static_assert(C::level == Level::kToken);
    return get<C>().subspan(static_cast<size_t>(row_offsets_[static_cast<size_t>(row)]),
                            static_cast<size_t>(row_tokens(row)));
  }
  // Replaces the column. As many values as the table has tokens or rows; without values the column is absent.
  template <class C>
  void put(std::vector<typename C::Value> values) {
    assert(values.empty() || values.size() == size_of(C::level));
    put(C::name, C::level, std::move(values));
  }
  // Puts a column of zeros, to be written.
  template <class C>
  std::span<typename C::Value> make() {
    put<C>(std::vector<typename C::Value>(size_of(C::level)));
    return edit<C>();
  }
  // A column to be changed in its place; empty if it is absent.
  template <class C>
  [[nodiscard]] std::span<typename C::Value> edit() {
    const auto found = columns_.find(C::name);
    if (found == columns_.end()) return {};
    return std::get<std::vector<typename C::Value>>(found->second.values);
  }
  template <class C>
  void drop() {
    put<C>({});
  }

  // What the sampler's filters left at each token, where log-probs are over that; empty: over the whole vocabulary.
  [[nodiscard]] const KeptTokens& kept() const { return kept_; }
  [[nodiscard]] KeptTokens kept_of(std::span<const int64_t> rows) const;
  void keep(KeptTokens kept) { kept_ = std::move(kept); }

  // The experts that passes of the policy take again; empty: its routers choose.
  [[nodiscard]] const ExpertChoices& experts() const { return experts_; }
  void replay(ExpertChoices experts) { experts_ = std::move(experts); }

  [[nodiscard]] StepView view() const;
  // The columns by token, of the tokens [begin, end) alone. `layout` says how these lie in rows.
  [[nodiscard]] StepView view(size_t begin, size_t end, const Layout& layout) const;
  // The columns of some rows, copied. `row_id` says their places in what the new table is part of.
  [[nodiscard]] StepTable take(std::span<const int64_t> rows, std::vector<int64_t> row_id) const;
  // Adds copies of the rows of another table behind these. Rows are numbered again, and so are groups: those of the two
  // tables are different ones. A column that only one of them has is left out.
  void append(const StepTable& more);
  // The same rows with their ids at other places. As many rows, with as many tokens.
  void move_ids(std::vector<TableRow> rows);

  // The columns, the kept tokens and the experts in checkpoints. The rows are not in them: a table is made from its
  // samples first. A column that this build does not declare, or one of another type or size, is an error.
  void save_columns(StateWriter& writer) const;
  Result<> load_columns(StateReader& reader);

 private:
  struct Stored {
    Level level = Level::kToken;
    std::variant<std::vector<float>, std::vector<uint8_t>> values;
  };
  template <class T>
  [[nodiscard]] static std::span<const T> values_of(const Stored& stored) {
    return std::get<std::vector<T>>(stored.values);
  }
  [[nodiscard]] size_t size_of(Level level) const {
    return static_cast<size_t>(level == Level::kToken ? num_tokens() : num_rows());
  }
  [[nodiscard]] const Stored* find(std::string_view name) const {
    const auto found = columns_.find(name);
    return found == columns_.end() ? nullptr : &found->second;
  }
  template <class T>
  void put(std::string_view name, Level level, std::vector<T> values);
  void append_columns(const StepTable& more);
  void append_experts(const StepTable& more);
  void number_groups(size_t num_first);
  template <class C>
  Result<> load_column(StateReader& reader, const std::string& key);
  template <class... Columns>
  Result<> load_columns(StateReader& reader, std::tuple<Columns...>* columns);
  Result<> load_kept(StateReader& reader);
  Result<> load_experts(StateReader& reader);

  std::vector<TableRow> rows_;
  std::vector<int64_t> row_offsets_{0}, row_id_, group_index_;
  std::map<std::string, Stored, std::less<>> columns_;
  KeptTokens kept_;
  ExpertChoices experts_;
};

// The rows of the samples with their masks, and the sampler's log-probs if all samples have theirs. Aborted rows carry
// no loss, nor do truncated ones if the batch says so, nor tokens of observations.
StepTable make_step_table(const PromptBatch& prompts, const SampleBatch& samples);

}  // namespace mortise
