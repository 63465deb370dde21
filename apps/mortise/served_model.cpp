// See served_model.h.
#include "served_model.h"

#include <utility>

namespace mortise {
namespace {

ServedSequence served(const GeneratedSequence& from) {
  ServedSequence out{
      from.sample_index, from.finish_reason, from.weight_version, from.ids, from.log_prob, from.filtered_log_prob, {}};
  out.top.reserve(from.top.size());
  for (const TokenLogProb& one : from.top) out.top.emplace_back(one.id, one.log_prob);
  return out;
}

}  // namespace

Result<std::unique_ptr<GeneratorModel>> GeneratorModel::create(Env& env, Model& model, const EngineOptions& options,
                                                               std::vector<int64_t> stop_ids) {
  std::unique_ptr<GeneratorModel> out(new GeneratorModel(env, model));
  out->engine_ = TRY(GenerateEngine::create(model, options));
  out->info_ = {model.config().vocab_size, model.config().max_length(), std::move(stop_ids)};
  return out;
}

Result<> GeneratorModel::submit(int64_t id, const ServedRequest& request) {
  GenerateRequest out{id,           request.prompt_ids, request.num_samples, request.first_row_id,
                      request.seed, request.step,       request.sampling,    request.num_top_log_probs};
  const auto taken = engine_->submit({&out, 1});
  if (!taken.ok()) return Error{ErrorKind::kData, taken.error().what, "", taken.error().next};
  if (*taken == 0)
    return Error{ErrorKind::kSignal, "too many requests wait", "", "send fewer at a time, or try again later"};
  return {};
}

Result<uint64_t> GeneratorModel::step(const Take& take) {
  const auto sink = [&](const GeneratedSequence& sequence) {
    take(sequence.request_id, served(sequence));
    return true;
  };
  return engine_->poll(sink, std::chrono::nanoseconds(1));  // one step
}

void GeneratorModel::visit_running(const Take& take) const {
  for (const auto& sample : engine_->running()) take(sample->sequence.request_id, served(sample->sequence));
}

Result<> GeneratorModel::load_weights(const std::string& folder) {
  engine_->free_caches();
  return model_->read_weights(*env_, folder);
}

}  // namespace mortise
