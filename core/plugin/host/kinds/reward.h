// A reward function by name, called in this process.
//
// A row that the function does not apply to, or that failed, is NaN and never 0; failed rows carry their reason.
// Threading: one call at a time per object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mortise/kinds/reward.h"
#include "plugin/host/instance.h"

namespace mortise {

// Text of all rows end to end: row i is bytes[offsets[i] .. offsets[i+1]).
struct TextColumn {
  std::string bytes{};
  std::vector<uint64_t> offsets{0};
  void append(std::string_view text);
  [[nodiscard]] size_t size() const { return offsets.size() - 1; }
  [[nodiscard]] std::string_view row(size_t i) const;
};

struct IdColumn {
  std::vector<int64_t> ids{};
  std::vector<uint64_t> offsets{0};
  void append(std::span<const int64_t> row_ids);
  [[nodiscard]] size_t size() const { return offsets.size() - 1; }
};

// A further column of the data rows. Values are MORTISE_COLUMN_*.
enum class ColumnType : int32_t { kText = 0, kI64 = 1, kF64 = 2, kJson = 3 };
using ColumnTypes = std::vector<std::pair<std::string, ColumnType>>;

// "text", "integer", "number", "json", as data.columns writes them.
[[nodiscard]] std::string_view column_type_name(ColumnType type);
[[nodiscard]] std::optional<ColumnType> parse_column_type(std::string_view name);

struct DataColumn {
  std::string name{};
  ColumnType type = ColumnType::kText;
  std::vector<uint8_t> valid{};  // [B]
  TextColumn text{};             // kText, kJson
  std::vector<int64_t> i64{};    // kI64
  std::vector<double> f64{};     // kF64

  // A null pointer or JSON null means "no value". `type` must hold every value (experience/data/column_types.h decides
  // it for all rows of a run). As text, a value that is not text is its JSON.
  static DataColumn from_json(std::string name, ColumnType type, std::span<const nlohmann::ordered_json* const> values);
};

// "answer (integer), level (text)": the columns that a reward without a value could have used. "none" without columns.
[[nodiscard]] std::string columns_phrase(std::span<const DataColumn> columns);

// B rows. Columns left empty (size 0) are filled with empty text, no ids, stop, and 0, 1, 2 ... as ids.
struct RewardBatch {
  int64_t num_rows = 0;
  TextColumn prompt{};
  TextColumn completion{};
  TextColumn messages{};
  IdColumn prompt_ids{};
  IdColumn completion_ids{};
  std::vector<int32_t> finish_reason{};  // MORTISE_FINISH_*
  std::vector<int64_t> group_index{};
  std::vector<int64_t> sample_index{};
  std::vector<int64_t> row_id{};
  std::vector<DataColumn> columns{};
  int64_t step = 0;  // 0 outside a run
  int64_t max_response_length = 0;
  bool is_validation = false;
};

// A named number of a row, or (mortise.row_text/1) a named text.
struct RowValue {
  int64_t row = 0;
  std::string name{};
  double value = 0;
  std::optional<std::string> text{};
};

struct RewardOutput {
  std::vector<double> rewards{};  // [B] NaN = does not apply, or failed
  // [B] for a row with a reward: the additional rewards of its tokens, one per completion id. Empty: the plugin
  // declares none.
  std::vector<std::vector<float>> token_rewards{};
  std::vector<FailedRow> failed_rows{};  // ascending
  std::vector<RowValue> row_values{};    // by row, then in the order given
  std::vector<MetricRecord> metrics{};   // as the plugin gave them
  std::vector<int64_t> metric_rows{};    // first row of the call that gave each, in the batch
  double seconds = 0;
};

// Offers mortise.row_text/1 to all plugins of this process.
void register_row_text();
// Whether it declares rewards per token. The engine then asks for them.
[[nodiscard]] bool gives_token_rewards(const PluginInfo& plugin);
// The fault in the token rewards of a row with this reward; "" if there is none.
[[nodiscard]] std::string token_reward_fault(double reward, std::span<const float> tokens);

// What the error of a whole call says of each of its rows: cause and next step, without the place, which who reads a
// row's reason knows.
[[nodiscard]] std::string failure_text(const Error& error);
// The first row of each of a few reasons: "row 1: cannot parse; row 4: its worker was ended by ...". One line.
[[nodiscard]] std::string failures_text(std::span<const FailedRow> failed);

// Values are MORTISE_REWARD_*.
enum class Granularity : int32_t { kRow = 0, kGroup = 1, kBatch = 2 };

class Reward {
 public:
  static Result<Reward> create(PluginRegistry& registry, std::string_view name, const nlohmann::ordered_json& params,
                               const RunKey& key);
  // In a worker: the pack is in memory and the parameters are checked.
  static Result<Reward> create(const LoadedPlugin& plugin, InstanceIdentity identity, const RunKey& key);
  [[nodiscard]] const PluginInfo& info() const { return instance_.info(); }
  [[nodiscard]] Granularity granularity() const;
  [[nodiscard]] PluginInstance& instance() { return instance_; }
  [[nodiscard]] const PluginInstance& instance() const { return instance_; }

  // An error only if the whole call failed. Rows that fail alone are in failed_rows.
  Result<RewardOutput> score(const RewardBatch& batch, MetricSet* metrics, const CallOptions& options = {});
  // The same on rows in other memory. Every pointer of `in` except messages, prompt_ids and the columns is set.
  Result<RewardOutput> score(const mortise_reward_in& in, MetricSet* metrics, const CallOptions& options);

 private:
  static Result<Reward> checked(PluginInstance instance);
  explicit Reward(PluginInstance instance) : instance_(std::move(instance)) {}
  PluginInstance instance_;
};

}  // namespace mortise
