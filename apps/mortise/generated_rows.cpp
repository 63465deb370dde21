// See generated_rows.h.
#include "generated_rows.h"

#include "foundation/base/text.h"

namespace mortise {
namespace {

// [[id, log-prob] ...] at each place.
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

}  // namespace

Result<GeneratedRows> GeneratedRows::create(Env& env, const Path& path,
                                            const std::vector<std::vector<int64_t>>& prompts, int64_t n,
                                            const Tokenizer* tokenizer, bool log_probs) {
  NewJsonlFile file = TRY(NewJsonlFile::create(env, path, NewJsonlFile::Unfinished::kKept));
  return GeneratedRows(std::move(file), prompts, n, tokenizer, log_probs);
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
  if (num_written_ == 0 || file_.temporary().empty()) return error;
  const std::string rows = "the first " + std::to_string(num_written_) + " of " + std::to_string(prompts_->size()) +
                           " rows are in " + file_.temporary().string();
  error.next = error.next.empty() ? rows : error.next + "; " + rows;
  return error;
}

}  // namespace mortise
