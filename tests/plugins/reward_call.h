// One call of a reward on a few rows given as literals.
#pragma once

#include <cmath>
#include <optional>

#include "support/fake_host.h"

namespace mortise::test {

// A data column of one type; nullopt = the row has no such value.
struct TestColumn {
  std::string name;
  int32_t type = MORTISE_COLUMN_TEXT;
  std::vector<std::optional<std::string>> text;
  std::vector<std::optional<double>> numbers;  // F64, or I64 when whole
};

struct RewardRows {
  std::vector<std::string> completions;
  std::vector<TestColumn> columns;
  std::vector<int64_t> num_ids, sample_index;
  int64_t max_response_length = 0;
  std::vector<std::string> messages{};  // empty: plain prompts
  int64_t step = 0;
  std::vector<int32_t> finish_reason{};  // empty: all ended with an end token
};

inline TestColumn text(const std::string& name, std::vector<std::optional<std::string>> cells) {
  return {name, MORTISE_COLUMN_TEXT, std::move(cells), {}};
}
inline TestColumn json(const std::string& name, std::vector<std::optional<std::string>> cells) {
  return {name, MORTISE_COLUMN_JSON, std::move(cells), {}};
}

inline RewardRows completions(std::vector<std::string> texts) { return {std::move(texts), {}, {}, {}, 0}; }

// NaN shown as -99, so that rewards compare as a vector.
inline std::vector<double> shown(std::vector<double> rewards) {
  for (double& r : rewards) r = std::isnan(r) ? -99 : r;
  return rewards;
}

class RewardCall {
 public:
  RewardCall(const mortise_descriptor* d, std::map<std::string, std::string> params = {})
      : plugin(d, std::move(params)) {}

  std::vector<double> score(const RewardRows& rows) {
    if (plugin.self == nullptr) throw std::runtime_error("create: " + plugin.call.error);
    const size_t n = rows.completions.size();
    const Text completions(rows.completions), prompts{std::vector<std::string>(n, "prompt")};
    const Text messages(rows.messages.empty() ? std::vector<std::string>(n) : rows.messages);
    std::vector<uint64_t> id_offsets{0};
    for (size_t i = 0; i < n; ++i)
      id_offsets.push_back(id_offsets.back() + uint64_t(rows.num_ids.empty() ? 1 : rows.num_ids[i]));
    const std::vector<int64_t> ids(id_offsets.back(), 65), zeros(n);
    const std::vector<int32_t> reasons =
        rows.finish_reason.empty() ? std::vector<int32_t>(n, MORTISE_FINISH_STOP) : rows.finish_reason;
    std::vector<std::unique_ptr<Column>> columns;
    std::vector<const mortise_column*> pointers;
    for (const TestColumn& c : rows.columns) {
      columns.push_back(std::make_unique<Column>(c));
      pointers.push_back(&columns.back()->view);
    }

    mortise_reward_in in{};
    in.struct_size = sizeof in;
    in.num_rows = int64_t(n);
    in.prompt = prompts.view();
    in.completion = completions.view();
    in.messages = messages.view();
    in.completion_ids = {ids.data(), id_offsets.data()};
    in.prompt_ids = {ids.data(), id_offsets.data()};
    in.finish_reason = reasons.data();
    in.group_index = in.row_id = zeros.data();
    in.sample_index = rows.sample_index.empty() ? zeros.data() : rows.sample_index.data();
    in.num_columns = pointers.size();
    in.columns = pointers.data();
    in.max_response_length = rows.max_response_length;
    in.step = rows.step;
    std::vector<double> rewards(n, NAN);
    mortise_reward_out out{};
    out.struct_size = sizeof out;
    out.rewards = rewards.data();
    out.row_value = [](void* sink, int64_t row, mortise_text name, double value) noexcept {
      static_cast<RewardCall*>(sink)->values[str(name)][row] = value;
    };
    out.sink = this;
    values.clear();
    plugin.call.failed_rows.clear();
    status = plugin.vtable->score(plugin.self, &plugin.call, &in, &out);
    return rewards;
  }

  Instance<mortise_reward_vtable> plugin;
  int32_t status = 0;
  std::map<std::string, std::map<int64_t, double>> values;  // values of the last call, by name and row

 private:
  struct Text {
    explicit Text(const std::vector<std::string>& cells) {
      for (const std::string& c : cells) bytes += c, offsets.push_back(bytes.size());
    }
    mortise_text_column view() const { return {bytes.data(), offsets.data()}; }
    std::string bytes;
    std::vector<uint64_t> offsets{0};
  };
  struct Column {
    explicit Column(const TestColumn& c) : name(c.name), text({}) {
      for (const auto& cell : c.text) {
        text.bytes += cell.value_or("");
        text.offsets.push_back(text.bytes.size());
        valid.push_back(cell ? 1 : 0);
      }
      for (const auto& x : c.numbers) {
        const double number = x.value_or(0);
        f64.push_back(number);
        i64.push_back(std::abs(number) < 9e18 ? int64_t(number) : 0);
        valid.push_back(x ? 1 : 0);
      }
      view.struct_size = sizeof view;
      view.type = c.type;
      view.name = {name.data(), name.size()};
      view.valid = valid.data();
      view.text = text.view();
      view.i64 = i64.data();
      view.f64 = f64.data();
    }
    std::string name;
    Text text;
    std::vector<uint8_t> valid;
    std::vector<double> f64;
    std::vector<int64_t> i64;
    mortise_column view{};
  };
};

}  // namespace mortise::test
