// See generated_rows.h.
#include "generated_rows.h"

#include <fmt/core.h>
#include <filesystem>

#include "foundation/base/log.h"
#include "foundation/base/rename_target.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// [[id, log-prob] ...] for each token.
Json top_of(const GeneratedSequence& sample) {
  const size_t width = sample.top.size() / sample.ids.size();
  Json out = Json::array();
  for (size_t t = 0; t < sample.ids.size(); ++t) {
    Json place = Json::array();
    for (size_t i = t * width; i < (t + 1) * width; ++i)
      place.push_back(Json::array({sample.top[i].id, sample.top[i].log_prob}));
    out.push_back(std::move(place));
  }
  return out;
}

// Drops the part of a last row that a full disk or a kill left. Returns whether there was any.
Result<bool> drop_broken_row(Env& env, const Path& path) {
  size_t size = 0, whole = 0;
  {
    const MappedFile file = TRY(env.map_file(path));
    size = file.text().size();
    whole = file.text().rfind('\n') + 1;  // 0 if there is none
  }
  if (whole == size) return false;
  std::error_code failed;
  std::filesystem::resize_file(path, whole, failed);
  if (failed) return Error{ErrorKind::kDisk, "cannot be cut: " + failed.message(), path.string(), "look at its rights"};
  return true;
}

// Keeps the rows of an earlier command, which cost time and may be of other settings. Returns whether it renamed the
// file.
Result<bool> set_earlier_rows_aside(Env& env, const Path& partial) {
  const auto info = env.info(partial);
  if (!info.ok() || info->size_bytes == 0) return false;
  const bool was_broken = TRY(drop_broken_row(env, partial));
  const std::string broken = was_broken ? "; its last row was not whole and is dropped" : "";
  if (TRY(env.info(partial)).size_bytes == 0) {
    log_info(fmt::format("{} is of an earlier command{}", partial.string(), broken));
    return false;
  }
  Path to;
  for (int i = 1; to.empty() || env.exists(to); ++i) to = fmt::format("{}.before_{}", partial.string(), i);
  TRY(env.rename(partial, to));
  log_info(fmt::format("the rows that an earlier command left in {} are now in {}{}", partial.string(), to.string(),
                       broken));
  return true;
}

Result<FolderLock> lock_rows(const Path& partial, const Path& path) {
  auto lock = FolderLock::take_file(partial);
  if (lock.ok()) return lock;
  Error error = std::move(lock).error();
  error.what = "another process is writing the rows of " + path.string();
  error.next = "wait for it, or choose another --out";
  return error;
}

}  // namespace

Result<GeneratedRows> GeneratedRows::create(Env& env, const Path& path,
                                            const std::vector<std::vector<int64_t>>& prompts, int64_t n,
                                            const Tokenizer* tokenizer, bool log_probs) {
  FolderLock lock;
  if (const std::optional<Path> target = TRY(rename_target(env, path))) {
    const Path partial = target->string() + ".partial";  // where NewJsonlFile keeps unfinished rows
    lock = TRY(lock_rows(partial, path));
    // Another command may have held the new file for a moment.
    while (TRY(set_earlier_rows_aside(env, partial))) lock = TRY(lock_rows(partial, path));
  }
  NewJsonlFile file = TRY(NewJsonlFile::create(env, path, NewJsonlFile::Unfinished::kKept));
  return GeneratedRows(env, std::move(lock), std::move(file), prompts, n, tokenizer, log_probs);
}

Json GeneratedRows::row_of(size_t place, const std::vector<GeneratedSequence>& samples) const {
  Json completions = Json::array();
  for (const GeneratedSequence& sample : samples) {
    Json item = {{"token_ids", sample.ids}};
    if (tokenizer_ != nullptr) item["text"] = tokenizer_->decode(sample.ids, /*skip_special_tokens=*/true);
    if (log_probs_) item["log_probs"] = sample.log_prob;
    if (log_probs_ && !sample.filtered_log_prob.empty()) item["filtered_log_probs"] = sample.filtered_log_prob;
    if (!sample.top.empty()) item["top_log_probs"] = top_of(sample);
    item["finish_reason"] = sample.finish_reason == FinishReason::kStop ? "stop" : "length";
    completions.push_back(std::move(item));
  }
  return {{"prompt_token_ids", (*prompts_)[place]}, {"completions", std::move(completions)}};
}

Result<> GeneratedRows::add(const GeneratedSequence& sequence) {
  const size_t ahead = static_cast<size_t>(sequence.request_id) - num_written_;
  while (waiting_.size() <= ahead) waiting_.push_back({std::vector<GeneratedSequence>(static_cast<size_t>(n_)), n_});
  waiting_[ahead].samples[static_cast<size_t>(sequence.sample_index)] = sequence;
  --waiting_[ahead].num_missing;
  num_tokens_ += static_cast<int64_t>(sequence.ids.size());
  while (!waiting_.empty() && waiting_.front().num_missing == 0) {
    TRY(file_.write(row_of(num_written_, waiting_.front().samples)));
    waiting_.pop_front();
    ++num_written_;
  }
  return {};
}

Result<> GeneratedRows::commit() { return file_.commit(); }

Error GeneratedRows::unfinished(Error error) const {
  const Path& partial = file_.temporary();
  if (partial.empty()) return error;
  const auto dropped = drop_broken_row(*env_, partial);
  if (num_written_ == 0) {
    (void)env_->unlink(partial);
    return error;
  }
  std::string rows = fmt::format("the first {} of {} rows are in {}", num_written_, prompts_->size(), partial.string());
  if (!dropped.ok()) rows += ", and a broken one behind them";
  error.next = error.next.empty() ? rows : fmt::format("{}; {}", error.next, rows);
  return error;
}

}  // namespace mortise
