// See step_state.h. Structured bindings take structs apart and name every member. A new member does not compile until
// it is saved here as well.
#include "train/loop/step_state.h"

#include <fmt/core.h>

#include <utility>

namespace mortise {

namespace {

Error uneven(const std::string& what) {
  return {ErrorKind::kData, fmt::format("state 'step': {} do not fit together", what), "", "use another checkpoint"};
}

void save_update(StateWriter& writer, const std::string& key, const UpdateReport& report) {
  const auto& [sums, grad_norm, lr, skipped, metrics] = report;
  const auto& [loss, pg_loss, kl_loss, kl, entropy, entropy_loss, num_tokens, bonus_entropy, num_bonus_tokens] = sums;
  const std::vector<double> numbers{loss,          pg_loss,
                                    kl_loss,       kl,
                                    entropy,       entropy_loss,
                                    grad_norm,     lr,
                                    bonus_entropy, static_cast<double>(num_bonus_tokens)};
  writer.put_vector(key + ".sums", numbers);
  writer.put_int(key + ".num_tokens", num_tokens);
  writer.put_bool(key + ".skipped", skipped);
  metrics.save(writer, key + ".metrics");
}

Result<UpdateReport> load_update(StateReader& reader, const std::string& key) {
  const auto numbers = TRY(reader.get_vector<double>(key + ".sums"));
  const bool is_older = numbers.size() == 8;  // from before the bonus had sums
  if (!is_older && numbers.size() != 10) return uneven("sums of " + key);
  UpdateReport report;
  ObjectiveSums& sums = report.sums;
  sums = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], 0};
  sums.num_tokens = TRY(reader.get_int(key + ".num_tokens"));
  if (!is_older) sums.bonus_entropy = numbers[8];
  if (!is_older) sums.num_bonus_tokens = static_cast<int64_t>(numbers[9]);
  report.grad_norm = numbers[6];
  report.lr = numbers[7];
  report.skipped = TRY(reader.get_bool(key + ".skipped"));
  TRY(report.metrics.load(reader, key + ".metrics"));
  return report;
}

std::string update_key(int64_t index) { return "updates." + std::to_string(index); }

}  // namespace

Result<> StepState::save_state(StateWriter& writer) const {
  const auto& [step, seconds, experience, table, updates, metrics] = work;
  writer.put_int("step", step);
  if (step == 0) return {};
  writer.put_double("seconds", seconds);
  writer.put_bytes("experience", encode_experience(experience));
  table.save_columns(writer);
  writer.put_int("num_updates", static_cast<int64_t>(updates.size()));
  for (size_t i = 0; i < updates.size(); ++i) save_update(writer, update_key(static_cast<int64_t>(i)), updates[i]);
  metrics.save(writer, "metrics");
  return {};
}

Result<> StepState::load_state(StateReader& reader) {
  Result<> loaded = load(reader);
  // No file of it is damaged: the manifest was compared before.
  if (!loaded.ok()) {
    loaded.error().what += "; another build of Mortise saved this unfinished step";
    loaded.error().next = "resume from a global_step_N folder";
  }
  return loaded;
}

Result<> StepState::load(StateReader& reader) {
  work = {};
  const int64_t step = TRY(reader.get_int("step"));
  if (step == 0) return {};
  work.seconds = TRY(reader.get_double("seconds"));
  const std::string experience = TRY(reader.get_bytes("experience"));
  work.experience = TRY(decode_experience(experience, "step/experience"));
  work.table = make_step_table(work.experience.prompts, work.experience.samples);
  TRY(work.table.load_columns(reader));
  const int64_t num_updates = TRY(reader.get_int("num_updates"));
  for (int64_t i = 0; i < num_updates; ++i) work.updates.push_back(TRY(load_update(reader, update_key(i))));
  TRY(work.metrics.load(reader, "metrics"));
  work.step = step;
  return {};
}

}  // namespace mortise
