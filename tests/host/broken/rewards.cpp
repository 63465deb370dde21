// Rewards that break one rule each; without a fault: 1 where the completion is the row's text column `answer`.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "plugins.h"

namespace broken {
namespace {

using In = mortise_reward_in;
using Out = mortise_reward_out;

std::string_view cell(const mortise_text_column& column, int64_t row) {
  return {column.bytes + column.offsets[row], size_t(column.offsets[row + 1] - column.offsets[row])};
}

// The row's answer; `known` is false if it has none.
std::string_view answer(const Instance& instance, const In* in, int64_t row, bool* known) {
  *known = false;
  for (uint64_t k = 0; k < in->num_columns; ++k) {
    const mortise_column* column = in->columns[k];
    if (std::string_view(column->name.data, column->name.size) != "answer") continue;
    if (column->type != MORTISE_COLUMN_TEXT && !instance.is("reward_column_types")) return {};
    *known = column->valid[row] != 0 || instance.is("reward_null_values");
    return *known ? cell(column->text, row) : std::string_view();
  }
  return {};
}

// A text for which a careless function gives up on the whole call.
const char* upsetting(const Instance& instance, std::string_view text) {
  if (instance.is("reward_empty_text") && text.empty()) return "nothing to score";
  if (instance.is("reward_zero_bytes") && text.find('\0') != std::string_view::npos) return "zero byte";
  if (instance.is("reward_invalid_utf8") && text.find('\xFF') != std::string_view::npos) return "no UTF-8";
  return nullptr;
}

double score_row(Instance& instance, mortise_call* call, const In* in, Out* out, int64_t row) {
  const std::string_view text_of_row = cell(in->completion, row);
  bool known = false;
  const std::string_view want = answer(instance, in, row, &known);
  if (instance.is("reward_deadline") && row % 3 == 0) ::usleep(200);
  if (instance.is("reward_row_numbers"))
    instance.host->fail_row(call, in->row_id[row], MORTISE_INTERNAL, text("by its number in the step"));
  if (instance.is("reward_long_text")) {  // quadratic
    for (const volatile char* a = text_of_row.data(); a < text_of_row.data() + text_of_row.size(); ++a) {
      for (const volatile char* b = text_of_row.data(); b < a; ++b) instance.calls += *a == *b ? 1 : 0;
    }
  }
  if (out->row_value != nullptr) out->row_value(out->sink, row, text("bytes"), double(text_of_row.size()));
  if (instance.is("reward_token_rewards") && out->token_rewards != nullptr)
    out->token_rewards[in->completion_ids.offsets[row]] = std::numeric_limits<float>::quiet_NaN();
  if (instance.is("reward_tokens_of_no_row") && out->token_rewards != nullptr)
    out->token_rewards[in->completion_ids.offsets[row]] = 1;
  if (instance.is("fine_reward") && known && MORTISE_HAS(out, token_rewards))
    out->token_rewards[in->completion_ids.offsets[row + 1] - 1] = 0.25F;
  if (instance.is("reward_odd_numbers")) return std::strtod(std::string(text_of_row).c_str(), nullptr);
  if (instance.is("reward_permutation") && row == 0) return 2;
  if (instance.is("reward_split")) return double(in->num_rows);
  if (!known) return instance.is("reward_missing_columns") ? 0 : std::numeric_limits<double>::quiet_NaN();
  return text_of_row == want ? instance.scale : 0;
}

int32_t score(void* self, mortise_call* call, const In* in, Out* out) noexcept {
  Instance& instance = of(self);
  for (int64_t row = 0; row < in->num_rows; ++row) {
    if (!instance.is("reward_deadline") && MORTISE_HAS(instance.host, cancelled) && instance.host->cancelled(call) != 0)
      return instance.host->fail(call, MORTISE_CANCELLED, text("cancelled"));
    if (const char* why = upsetting(instance, cell(in->completion, row)))
      return instance.host->fail(call, MORTISE_INVALID_ARGUMENT, text(why));
    out->rewards[row] = score_row(instance, call, in, out, row);
  }
  return MORTISE_OK;
}

}  // namespace
}  // namespace broken

#define REWARD(name) BROKEN_PLUGIN(reward, REWARD, name, 0, MORTISE_REWARD_ROW, 0, broken::score)
#define TOKEN_REWARD(name) \
  BROKEN_PLUGIN(reward, REWARD, name, MORTISE_FLAG_TOKEN_REWARDS, MORTISE_REWARD_ROW, 0, broken::score)
TOKEN_REWARD(fine_reward)
REWARD(reward_permutation)
REWARD(reward_split)
REWARD(reward_invalid_utf8)
REWARD(reward_zero_bytes)
REWARD(reward_empty_text)
REWARD(reward_long_text)
REWARD(reward_odd_numbers)
REWARD(reward_missing_columns)
REWARD(reward_null_values)
REWARD(reward_column_types)
REWARD(reward_deadline)
REWARD(reward_row_numbers)
TOKEN_REWARD(reward_token_rewards)
TOKEN_REWARD(reward_tokens_of_no_row)
