// See step_state.h. Structs are taken apart by structured bindings, which name every member: one that is added later
// does not compile until it is saved here as well.
#include "train/step_state.h"

#include <utility>

namespace mortise {

namespace {

Error uneven(const std::string& what) {
  return {ErrorKind::kData, "state 'step': " + what + " do not fit together", "", "use another checkpoint"};
}

void save_advantages(StateWriter& writer, const AdvantageBatch& batch) {
  const auto& [row_offsets, group_index, response_mask, scores, rewards, advantages, returns] = batch;
  writer.put_vector("advantages.row_offsets", row_offsets);
  writer.put_vector("advantages.group_index", group_index);
  writer.put_vector("advantages.response_mask", response_mask);
  writer.put_vector("advantages.scores", scores);
  writer.put_vector("advantages.rewards", rewards);
  writer.put_vector("advantages.advantages", advantages);
  writer.put_vector("advantages.returns", returns);
}

Result<AdvantageBatch> load_advantages(StateReader& reader) {
  AdvantageBatch batch;
  batch.row_offsets = TRY(reader.get_vector<int64_t>("advantages.row_offsets"));
  batch.group_index = TRY(reader.get_vector<int64_t>("advantages.group_index"));
  batch.response_mask = TRY(reader.get_vector<uint8_t>("advantages.response_mask"));
  batch.token_level_scores = TRY(reader.get_vector<float>("advantages.scores"));
  batch.token_level_rewards = TRY(reader.get_vector<float>("advantages.rewards"));
  batch.advantages = TRY(reader.get_vector<float>("advantages.advantages"));
  batch.returns = TRY(reader.get_vector<float>("advantages.returns"));
  return batch;
}

void save_update(StateWriter& writer, const std::string& key, const UpdateReport& report) {
  const auto& [sums, grad_norm, lr, skipped, metrics] = report;
  const auto& [loss, pg_loss, kl_loss, kl, entropy, entropy_loss, num_tokens] = sums;
  const std::vector<double> numbers{loss, pg_loss, kl_loss, kl, entropy, entropy_loss, grad_norm, lr};
  writer.put_vector(key + ".sums", numbers);
  writer.put_int(key + ".num_tokens", num_tokens);
  writer.put_bool(key + ".skipped", skipped);
  metrics.save(writer, key + ".metrics");
}

Result<UpdateReport> load_update(StateReader& reader, const std::string& key) {
  const auto numbers = TRY(reader.get_vector<double>(key + ".sums"));
  if (numbers.size() != 8) return uneven("sums of " + key);
  UpdateReport report;
  report.sums = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], 0};
  report.sums.num_tokens = TRY(reader.get_int(key + ".num_tokens"));
  report.grad_norm = numbers[6];
  report.lr = numbers[7];
  report.skipped = TRY(reader.get_bool(key + ".skipped"));
  TRY(report.metrics.load(reader, key + ".metrics"));
  return report;
}

std::string update_key(int64_t index) { return "updates." + std::to_string(index); }

}  // namespace

Result<> StepState::save_state(StateWriter& writer) const {
  const auto& [step, seconds, experience, log_probs, corrected, advantages, first_log_prob, updates, metrics] = work;
  writer.put_int("step", step);
  if (step == 0) return {};
  const auto& [old_log_prob, ref_log_prob, old_entropy] = log_probs;
  const auto& [weights, mask] = corrected;
  writer.put_double("seconds", seconds);
  writer.put_bytes("experience", encode_experience(experience));
  writer.put_vector("log_probs.old", old_log_prob);
  writer.put_vector("log_probs.ref", ref_log_prob);
  writer.put_vector("log_probs.entropy", old_entropy);
  writer.put_vector("log_probs.first", first_log_prob);
  writer.put_vector("corrected.weights", weights);
  writer.put_vector("corrected.mask", mask);
  save_advantages(writer, advantages);
  writer.put_int("num_updates", static_cast<int64_t>(updates.size()));
  for (size_t i = 0; i < updates.size(); ++i) save_update(writer, update_key(static_cast<int64_t>(i)), updates[i]);
  metrics.save(writer, "metrics");
  return {};
}

Result<> StepState::load_state(StateReader& reader) {
  work = {};
  const int64_t step = TRY(reader.get_int("step"));
  if (step == 0) return {};
  work.seconds = TRY(reader.get_double("seconds"));
  const std::string experience = TRY(reader.get_bytes("experience"));
  work.experience = TRY(decode_experience(experience, "step/experience"));
  work.log_probs.old_log_prob = TRY(reader.get_vector<float>("log_probs.old"));
  work.log_probs.ref_log_prob = TRY(reader.get_vector<float>("log_probs.ref"));
  work.log_probs.old_entropy = TRY(reader.get_vector<float>("log_probs.entropy"));
  work.first_log_prob = TRY(reader.get_vector<float>("log_probs.first"));
  work.corrected.weights = TRY(reader.get_vector<float>("corrected.weights"));
  work.corrected.mask = TRY(reader.get_vector<uint8_t>("corrected.mask"));
  work.advantages = TRY(load_advantages(reader));
  const int64_t num_updates = TRY(reader.get_int("num_updates"));
  for (int64_t i = 0; i < num_updates; ++i) work.updates.push_back(TRY(load_update(reader, update_key(i))));
  TRY(work.metrics.load(reader, "metrics"));
  work.step = step;
  return {};
}

}  // namespace mortise
