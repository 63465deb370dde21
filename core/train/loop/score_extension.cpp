// The C functions of mortise.score_model/1 over ScoreModel.
#include "train/loop/score_extension.h"

#include <fmt/core.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/log.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/extension_call.h"
#include "plugin/host/host_services.h"
#include "plugin/host/instance.h"
#include "train/loop/score_model.h"

namespace mortise {
namespace {

constexpr const char* kWho = "the reward model";

// Where models compute that are opened from now on.
class Place {
 public:
  void set(const ComputeDevice& device) {
    const std::lock_guard lock(mutex_);
    device_ = device;
  }
  [[nodiscard]] ComputeDevice get() const {
    const std::lock_guard lock(mutex_);
    return device_;
  }

 private:
  mutable std::mutex mutex_;
  ComputeDevice device_;
};

Place& place() {
  static Place place;
  return place;
}

struct Opened {
  const mortise_host* host;
  ScoreModel model;
};

std::string_view view(mortise_text text) {
  return text.data == nullptr ? std::string_view() : std::string_view(text.data, text.size);
}

// Reads an optional column of texts.
std::string_view text_at(const mortise_text* column, size_t row) {
  return column == nullptr ? std::string_view() : view(column[row]);
}

Result<ScoreModelOptions> read_options(const mortise_score_model_options* from) {
  const auto in = read_abi_struct(from);
  ScoreModelOptions out;
  out.folder = Path(view(in.folder));
  if (in.chat_template.size > 0) out.chat_template = Path(view(in.chat_template));
  out.plain_text = in.plain_text != 0;
  out.max_length = in.max_length;
  if (in.batch_size > 0) out.batch_size = in.batch_size;
  static_assert(static_cast<int32_t>(Truncation::kMiddle) == MORTISE_TRUNCATE_MIDDLE &&
                static_cast<int32_t>(Truncation::kError) == MORTISE_TRUNCATE_ERROR &&
                static_cast<int32_t>(Truncation::kLeft) == MORTISE_TRUNCATE_LEFT);
  if (in.truncation < MORTISE_TRUNCATE_ERROR || in.truncation > MORTISE_TRUNCATE_MIDDLE) {
    return Error{ErrorKind::kConfig, "truncation is " + std::to_string(in.truncation), MORTISE_EXT_SCORE_MODEL,
                 "use one of MORTISE_TRUNCATE_*"};
  }
  out.truncation = static_cast<Truncation>(in.truncation);
  out.device = place().get();
  return out;
}

int32_t fault_status(LoadFault fault) {
  switch (fault) {
    case LoadFault::kMissing:
      return MORTISE_NOT_FOUND;
    case LoadFault::kUnsuitable:
      return MORTISE_INVALID_ARGUMENT;
    case LoadFault::kDamaged:
      return MORTISE_DATA_LOSS;
  }
  return MORTISE_INTERNAL;
}

// Allowed, because TRL never truncates; but the scores should not be the first sign of it.
void warn_of_long_rows(const ScoreModel& model, const Path& folder) {
  const int64_t positions = model.model().config().max_position_embeddings;
  if (model.max_length() <= positions) return;
  log_warn(
      fmt::format("reward model {}: max_length = {} is more than its max_position_embeddings = {}, and longer rows "
                  "are scored at positions that it has not been trained for; lower max_length",
                  folder.string(), model.max_length(), positions));
}

Result<std::unique_ptr<Opened>> open_score_model(const mortise_host* host, const mortise_score_model_options* options,
                                                 LoadFault& fault) {
  const ScoreModelOptions wanted = TRY(read_options(options));
  ScoreModel loaded = TRY(ScoreModel::load(default_env(), wanted, &fault));
  auto opened = std::make_unique<Opened>(Opened{host, std::move(loaded)});
  const ModelConfig& config = opened->model.model().config();
  const ComputeDevice& device = opened->model.model().device();
  log_info(fmt::format("reward model {}: {} parameters, at most {} tokens of prompt and completion{}",
                       wanted.folder.string(), config.num_parameters(), opened->model.max_length(),
                       device.by_operators ? ", on " + device.text : ""));
  warn_of_long_rows(opened->model, wanted.folder);
  return opened;
}

int32_t open_model(const mortise_host* host, mortise_call* call, const mortise_score_model_options* options,
                   void** model) noexcept {
  int32_t data_status = MORTISE_INVALID_ARGUMENT;
  const auto load = [&]() -> Result<> {
    LoadFault fault = LoadFault::kUnsuitable;
    auto opened = open_score_model(host, options, fault);
    if (!opened.ok() && opened.error().kind == ErrorKind::kData) {
      data_status = fault_status(fault);
      if (call != nullptr) call->bad_file = true;
    }
    *model = TRY(std::move(opened)).release();
    return {};
  };
  return guard_extension(host, call, kWho, load, data_status);
}

void close_model(void* model) noexcept { delete static_cast<Opened*>(model); }

void report_rows(const std::vector<RowScore>& rows, const mortise_score_model_out& out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    out.scores[i] = rows[i].score;
    if (out.num_tokens != nullptr) out.num_tokens[i] = rows[i].num_tokens;
    if (!rows[i].error || out.row_failed == nullptr) continue;
    const std::string text = rows[i].error->to_string();
    out.row_failed(out.sink, static_cast<int64_t>(i), status_of(rows[i].error->kind), {text.data(), text.size()});
  }
}

int32_t score(void* model, mortise_call* call, const mortise_score_model_in* in_raw,
              mortise_score_model_out* out_raw) noexcept {
  const Opened& opened = *static_cast<const Opened*>(model);
  return guard_extension(opened.host, call, kWho, [&]() -> Result<> {
    const auto in = read_abi_struct(in_raw);
    const auto out = read_abi_struct(out_raw);
    if (in.num_rows < 0 || (in.num_rows > 0 && (in.prompts == nullptr || in.completions == nullptr || !out.scores))) {
      return Error{ErrorKind::kData, "prompts, completions or scores is null", MORTISE_EXT_SCORE_MODEL,
                   "set all three"};
    }
    std::vector<ScoreRow> rows(static_cast<size_t>(in.num_rows));
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = {view(in.prompts[i]), view(in.completions[i]), text_at(in.messages, i), text_at(in.tools, i)};
    const auto is_over = [&] { return opened.host->cancelled != nullptr && opened.host->cancelled(call) != 0; };
    const std::vector<RowScore> scores = TRY(opened.model.score(rows, is_over));
    report_rows(scores, out);
    return {};
  });
}

constexpr mortise_score_model_vtable kTable = {sizeof(mortise_score_model_vtable), 0, open_model, close_model, score};

}  // namespace

void offer_score_models(const ComputeDevice& device) {
  place().set(device);
  register_host_extension(MORTISE_EXT_SCORE_MODEL, &kTable);
}

}  // namespace mortise
