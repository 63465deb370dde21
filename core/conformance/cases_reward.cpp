// Reward cases: orders and splits, unexpected texts, missing columns, time.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "conformance/reward_call.h"
#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "mortise/kinds/reward.h"

namespace mortise::check {
namespace {

int32_t granularity_of(const Subject& subject) { return subject.vtable<mortise_reward_vtable>().granularity; }

Result<> demand_rewards(const RewardResult& one, const RewardResult& other, std::span<const int64_t> order,
                        const std::string& when) {
  for (size_t k = 0; k < order.size(); ++k) {
    const double a = one.rewards[static_cast<size_t>(order[k])], b = other.rewards[k];
    if (!same_reward(a, b))
      return broken(fmt::format("row {} gets {}, and {} {}", order[k], format_f64(a), format_f64(b), when));
    if (!one.token_rewards.empty() && one.token_rewards[static_cast<size_t>(order[k])] != other.token_rewards[k])
      return broken(fmt::format("row {} gets other token rewards {}", order[k], when));
  }
  return {};
}

Result<> reward_permutation(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const RewardBatch rows = usual_rows(subject);
  const RewardResult usual = TRY(reward_ok(instance, rows));
  // Reorders whole groups, and the rows inside them only if rows are scored alone.
  std::vector<int64_t> order = {8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7};
  if (granularity_of(subject) == MORTISE_REWARD_ROW) std::reverse(order.begin(), order.end());
  const RewardResult mixed = TRY(reward_ok(instance, pick(rows, order)));
  return demand_rewards(usual, mixed, order, "with the rows in another order");
}

Result<> reward_split(Subject& subject) {
  const int32_t granularity = granularity_of(subject);
  if (granularity == MORTISE_REWARD_BATCH) return not_applicable("it always gets the whole batch");
  const Instance instance = TRY(subject.create(make_host()));
  const RewardBatch rows = usual_rows(subject);
  const RewardResult usual = TRY(reward_ok(instance, rows));
  const int64_t size = granularity == MORTISE_REWARD_ROW ? 1 : 4;
  for (int64_t first = 0; first < rows.num_rows; first += size) {
    std::vector<int64_t> piece(static_cast<size_t>(size));
    std::iota(piece.begin(), piece.end(), first);
    const RewardResult alone = TRY(reward_ok(instance, pick(rows, piece)));
    TRY(demand_rewards(usual, alone, piece, size == 1 ? "when it comes alone" : "when its group comes alone"));
  }
  return {};
}

// The call may fail rows one by one, but not as a whole, and not the rows next to the bad ones.
Result<> bad_beside_good(const Subject& subject, const std::vector<std::string>& texts, const std::string& what) {
  const Instance instance = TRY(subject.create(make_host()));
  std::vector<std::string> mixed = {"42"};
  mixed.insert(mixed.end(), texts.begin(), texts.end());
  mixed.emplace_back("42");
  constexpr int64_t kGood[] = {0};
  const RewardBatch rows = rows_of(subject, mixed);
  const RewardResult all = TRY(reward_ok(instance, rows));
  const RewardResult good = TRY(reward_ok(instance, pick(rows, kGood)));
  if (granularity_of(subject) == MORTISE_REWARD_BATCH) return {};
  return demand_rewards(all, good, kGood, fmt::format("without {} in the batch", what));
}

Result<> invalid_utf8(Subject& subject) {
  return bad_beside_good(
      subject,
      {"\xFF\xFE\x80", "42\xC3", "\xED\xA0\x80 42", "\xF4\x90\x80\x80", std::string(100, '\xC0'), "a\xE2\x28\xA1z"},
      "texts that are not UTF-8");
}

Result<> zero_bytes(Subject& subject) {
  return bad_beside_good(subject, {std::string(1, '\0'), std::string("42\0x", 4), std::string("\0\0 42", 5)},
                         "texts with zero bytes");
}

Result<> empty_text(Subject& subject) {
  return bad_beside_good(subject, {"", " ", "\n\n\n", "\xEF\xBB\xBF"}, "empty texts");
}

Result<> long_text(Subject& subject) {
  constexpr size_t kSize = 1 << 20;
  std::string words, nested = std::string(kSize / 2, '{') + std::string(kSize / 2, '}');
  while (words.size() < kSize) words += "the answer is 42, or (41 + 1); ";
  return bad_beside_good(subject, {words, std::string(kSize, 'a'), std::string(kSize, '\\'), nested},
                         "a text of 1 MiB");
}

Result<> odd_numbers(Subject& subject) {
  const std::vector<std::string> texts = {
      "1e999",        "-1e999",         "nan",    "inf",      "-inf", "0/0", "1/0", "9" + std::string(400, '9'),
      "\\frac{1}{0}", "\\boxed{1e400}", "1e-400", "0x1p99999"};
  return bad_beside_good(subject, texts, "numbers that are too large");
}

// A parameter with the role `column` decides which column is read.
Result<> column_role(Subject& subject) {
  constexpr const char* kNobodyHas = "a_column_that_nobody_has";
  const RewardBatch rows = usual_rows(subject);
  const Instance instance = TRY(subject.create(make_host()));
  const RewardResult usual = TRY(reward_ok(instance, rows));
  const bool is_scored = std::ranges::any_of(usual.rewards, [](double reward) { return std::isfinite(reward); });
  bool looked = false;
  for (const ParamInfo& param : subject.info().params) {
    const Json* const name = json_find(subject.request().params, param.name);
    if (param.role != ParamRole::kColumn || !is_scored || name == nullptr || *name == "") continue;
    looked = true;
    Request request = subject.request();
    request.params[param.name] = kNobodyHas;
    Subject other(std::move(request), subject.pack());
    TRY(other.load());
    const Instance elsewhere = TRY(other.create(make_host()));
    const RewardResult without = TRY(reward_ok(elsewhere, rows));
    if (std::ranges::equal(usual.rewards, without.rewards, same_reward))
      return broken(
          fmt::format("its parameter {} has the role column, and the rewards are the same whichever column it names",
                      quote(param.name)));
  }
  if (looked) return {};
  return not_applicable("none of its parameters names a column of the usual rows");
}

// A column on which the reward depends, and which is not there, makes the reward NaN or fails the row; never a number.
Result<> missing_columns(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const RewardBatch rows = usual_rows(subject);
  RewardBatch other = rows;
  for (DataColumn& column : other.columns) {
    TextColumn text;
    for (int64_t row = 0; row < rows.num_rows; ++row) text.append("7");
    column.text = std::move(text);
  }
  RewardBatch without = rows;
  without.columns.clear();
  const RewardResult a = TRY(reward_ok(instance, rows)), b = TRY(reward_ok(instance, other)),
                     none = TRY(reward_ok(instance, without));
  for (size_t row = 0; row < a.rewards.size(); ++row) {
    const bool depends = !same_reward(a.rewards[row], b.rewards[row]);
    if (depends && !std::isnan(none.rewards[row]))
      return broken(fmt::format("row {} depends on a data column, and gets {} without it; give NaN, or fail_row", row,
                                format_f64(none.rewards[row])));
  }
  return {};
}

Result<> null_values(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const RewardBatch rows = usual_rows(subject);
  RewardBatch without = rows, nulls = rows;
  without.columns.clear();
  for (DataColumn& column : nulls.columns) {  // the text is there, but not valid
    std::fill(column.valid.begin(), column.valid.end(), uint8_t{0});
  }
  const RewardResult a = TRY(reward_ok(instance, without)), b = TRY(reward_ok(instance, nulls));
  for (size_t row = 0; row < a.rewards.size(); ++row) {
    if (!same_reward(a.rewards[row], b.rewards[row]))
      return broken(fmt::format("row {} gets {} without columns, and {} where the values are marked as absent", row,
                                format_f64(a.rewards[row]), format_f64(b.rewards[row])));
  }
  return {};
}

// Columns of every type under the names that it may look for; pointers of the other types are null.
Result<> column_types(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (const ColumnType type : {ColumnType::kI64, ColumnType::kF64, ColumnType::kJson}) {
    RewardBatch rows = usual_rows(subject);
    const auto count = static_cast<size_t>(rows.num_rows);
    for (DataColumn& column : rows.columns) {
      column.type = type;
      column.text = TextColumn();
      if (type == ColumnType::kI64) column.i64.assign(count, 42);
      if (type == ColumnType::kF64) column.f64.assign(count, 42.5);
      if (type != ColumnType::kJson) continue;
      for (size_t row = 0; row < count; ++row)
        column.text.append(row % 3 == 0 ? "[1,[2,{\"a\":null}]]" : row % 3 == 1 ? "{\"answer\": \"42\"}" : "\"42\"");
    }
    TRY(reward_ok(instance, rows));
  }
  return {};
}

// cancelled() turns 1 after a moment; then there is a second to come back.
Result<> deadline(Subject& subject) {
  constexpr int64_t kAllowedNs = 50'000'000;
  constexpr double kGrace = 1.0;
  const Instance instance = TRY(subject.create(make_host()));
  std::vector<std::string> texts;
  for (int i = 0; i < 20'000; ++i) texts.push_back("the answer is " + std::to_string(i));
  RewardBatch rows = rows_of(subject, texts);
  rows.columns.resize(std::min<size_t>(rows.columns.size(), 3));
  HostShape shape;
  shape.cancel_ns = default_env().monotonic_ns() + kAllowedNs;
  (void)make_host(shape);  // for the instance too: the switches are shared
  const RewardResult result = call_reward(instance, rows);
  if (!result.call.thrown.empty()) return judge(result.call, "score");
  const bool answered = result.call.code == MORTISE_OK || result.call.code == MORTISE_CANCELLED ||
                        result.call.code == MORTISE_DEADLINE_EXCEEDED;
  if (!answered) return judge(result.call, "score");
  if (result.call.seconds <= kGrace + static_cast<double>(kAllowedNs) * 1e-9) return {};
  return broken(fmt::format("20,000 rows with a deadline of 50 ms take {}; ask host->cancelled between rows",
                            format_duration(result.call.seconds)));
}

Result<> row_numbers(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kPart[] = {5, 6, 7};  // row ids do not start at 0
  RewardBatch rows = pick(usual_rows(subject), kPart);
  const RewardResult result = TRY(reward_ok(instance, rows));
  for (const RowValue& value : result.row_values) {
    if (value.name.empty()) return broken("gives a number without a name to row " + std::to_string(value.row));
  }
  return {};
}

// Checks every row's token rewards together with the row's own reward. Failed rows do not matter.
Result<> look_at_tokens(const RewardResult& result, bool of_rewarded_rows) {
  std::set<int64_t> failed;
  for (const FailedRow& row : result.call.failed_rows) failed.insert(row.row);
  for (size_t row = 0; row < result.token_rewards.size(); ++row) {
    if (failed.contains(static_cast<int64_t>(row)) || std::isnan(result.rewards[row]) == of_rewarded_rows) continue;
    if (const std::string fault = token_reward_fault(result.rewards[row], result.token_rewards[row]); !fault.empty())
      return broken(fmt::format("row {} {}", row, fault));
  }
  return {};
}

Result<> demand_token_rewards(const Subject& subject) {
  if (gives_token_rewards(subject.info())) return {};
  return not_applicable("it declares no token rewards (MORTISE_FLAG_TOKEN_REWARDS)");
}

Result<> token_rewards(Subject& subject) {
  TRY(demand_token_rewards(subject));
  const Instance instance = TRY(subject.create(make_host()));
  const RewardResult result = TRY(reward_ok(instance, usual_rows(subject)));
  bool any = false;
  for (const std::vector<float>& tokens : result.token_rewards)
    any = any || std::any_of(tokens.begin(), tokens.end(), [](float x) { return x != 0.0F; });
  if (!any) subject.note("it gave no token a reward");
  return look_at_tokens(result, /*of_rewarded_rows=*/true);
}

Result<> tokens_of_no_row(Subject& subject) {
  TRY(demand_token_rewards(subject));
  const Instance instance = TRY(subject.create(make_host()));
  RewardBatch rows = usual_rows(subject);
  const RewardResult usual = TRY(reward_ok(instance, rows));
  TRY(look_at_tokens(usual, /*of_rewarded_rows=*/false));
  rows.columns.clear();  // what it reads there is missing
  const RewardResult without = TRY(reward_ok(instance, rows));
  return look_at_tokens(without, /*of_rewarded_rows=*/false);
}

constexpr Case kRewardCases[] = {
    {"reward.permutation", "R24", kReward, "the order of the rows changes nothing", reward_permutation},
    {"reward.split", "R24", kReward, "splitting the batch, as far as the granularity allows, changes nothing",
     reward_split},
    {"reward.invalid_utf8", "R42", kReward, "a text that is not UTF-8 fails at most its own row", invalid_utf8},
    {"reward.zero_bytes", "R7", kReward, "zero bytes in a text do not change other rows", zero_bytes},
    {"reward.empty_text", "R42", kReward, "an empty text fails at most its own row", empty_text},
    {"reward.long_text", "R42", kReward, "texts of 1 MiB are scored in time", long_text},
    {"reward.odd_numbers", "R23", kReward, "no text gives an infinite reward", odd_numbers},
    {"reward.missing_columns", "R23", kReward, "a missing column gives NaN, never 0", missing_columns},
    {"reward.column_role", "R44", kReward, "a parameter with the role column chooses the column", column_role},
    {"reward.null_values", "R23", kReward, "it treats a value that is marked as absent as absent", null_values},
    {"reward.column_types", "R42", kReward, "it accepts columns of any type", column_types},
    {"reward.deadline", "R36", kReward, "it returns soon after its deadline", deadline},
    {"reward.row_numbers", "R35", kReward, "it names rows by their index in the call", row_numbers},
    {"reward.token_rewards", "R43", kReward, "token rewards are finite", token_rewards},
    {"reward.tokens_of_no_row", "R43", kReward, "rows without a reward have no token rewards", tokens_of_no_row},
};

}  // namespace

std::span<const Case> reward_cases() { return kRewardCases; }

}  // namespace mortise::check
