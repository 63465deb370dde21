// Samples this rank's prompts, and exchanges the rows.
#include "train/sampling/shared_rollout.h"

#include <utility>

#include "experience/rollout/sample_bytes.h"
#include "foundation/base/hints.h"
#include "foundation/batch/rank_block.h"
#include "foundation/metrics/live.h"
#include "plugin/worker/channel.h"
#include "plugin/worker/metric_bytes.h"
#include "train/sampling/prompt_queue.h"

namespace mortise {

namespace {

constexpr std::string_view kRolloutStage = "rollout";
constexpr std::string_view kExchangeStage = "completions";

std::string encode_rows(const SampleBatch& samples, std::span<const int64_t> prompts, const MetricSet& metrics) {
  Encoder out;
  out.u64(prompts.size());
  for (const int64_t prompt : prompts) {
    out.i64(prompt);
    for (int64_t i = 0; i < samples.num_samples_per_prompt; ++i)
      put_sample(out, samples.rows[static_cast<size_t>(prompt * samples.num_samples_per_prompt + i)]);
  }
  out.text(encode_metrics(metrics));
  return out.bytes();
}

Error unreadable_rows() {
  return {ErrorKind::kInternal, "the completions of another rank cannot be read", "", hints::kOneBuildOfRanks};
}

Result<MetricSet> decode_rows(std::string_view bytes, SampleBatch& samples) {
  Decoder in(bytes);
  const auto num_prompts = static_cast<int64_t>(samples.rows.size()) / samples.num_samples_per_prompt;
  for (size_t left = in.count(sizeof(int64_t)); left > 0; --left) {
    const int64_t prompt = in.i64();
    if (prompt < 0 || prompt >= num_prompts) return unreadable_rows();
    for (int64_t i = 0; i < samples.num_samples_per_prompt; ++i)
      samples.rows[static_cast<size_t>(prompt * samples.num_samples_per_prompt + i)] = read_sample(in);
  }
  MetricSet metrics = TRY(decode_metrics(in.text()));
  if (!in.done()) return unreadable_rows();
  return metrics;
}

}  // namespace

Result<SampleBatch> collect_on_ranks(RoundRanks& ranks, RolloutRunner& runner, const PromptBatch& prompts,
                                     RolloutPlan plan, const RolloutConfig& config, const Tokenizer& tokenizer,
                                     MetricSet* metrics,
                                     const std::function<Result<>(const SampleBatch&, int64_t)>& on_prompt,
                                     const std::function<Result<>(const SampleBatch&, int)>& on_turn) {
  const int64_t max_rows = config.max_num_seqs;
  const auto group_size = static_cast<int>(config.tensor_model_parallel_size);
  const bool tells = ranks.rank() % group_size == 0;  // the others of its group have the same rows
  const bool keeps_state = TRY(runner.backend().instance().save_state()).has_value();
  PromptQueue queue(ranks.group(), static_cast<int64_t>(prompts.prompts.size()), keeps_state,
                    max_rows / plan.num_samples, group_size);
  plan.next_prompt = [&queue] { return queue.next(); };
  plan.max_rows = queue.is_shared() ? max_rows : 0;
  // Sampling takes long: a rank that fails meanwhile ends the others at once.
  const auto turn = [&](const SampleBatch& rows, int wait_ms) -> Result<> {
    TRY(ranks.check(kRolloutStage));
    return on_turn ? on_turn(rows, wait_ms) : Result<>();
  };
  const auto show = [&](int64_t done, int64_t total) {
    live_stage(plan.is_validation ? kValidationStage : kSamplingStage, "rows", done, total);
  };
  MetricSet measured;
  SampleBatch samples = TRY(runner.collect(prompts, plan, tokenizer, metrics != nullptr && tells ? &measured : nullptr,
                                           show, on_prompt, [&](const SampleBatch& rows) { return turn(rows, 0); }));
  const std::span<const int64_t> told = tells ? queue.taken() : std::span<const int64_t>();
  Result<> turned;
  const Meanwhile go_on = [&](int wait_ms) {
    turned = turn(samples, wait_ms);
    if (!turned.ok()) ranks.fail(turned.error());
    return turned.ok();
  };
  auto exchanged = ranks.exchange(encode_rows(samples, told, measured), kExchangeStage, on_turn ? go_on : Meanwhile());
  TRY(turned);
  const std::vector<std::string> all = TRY(std::move(exchanged));
  TRY(queue.close());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank != ranks.rank()) measured = TRY(decode_rows(all[static_cast<size_t>(rank)], samples));
    if (metrics != nullptr) TRY(metrics->merge(measured));
  }
  return samples;
}

namespace {

// The places of the open prompts in the order of the queue. Each rank's block has prompts of every batch, because the
// pieces of one may be longer than those of another. Older batches come first.
std::vector<int64_t> dealt(int64_t count, int num_groups) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  std::vector<RankBlock> left;
  for (int group = 0; group < num_groups; ++group) left.push_back(rank_block(count, group, num_groups));
  size_t group = 0;
  for (int64_t place = 0; place < count; ++place) {
    while (left[group].size() == 0) group = (group + 1) % left.size();
    places[static_cast<size_t>(left[group].begin++)] = place;
    group = (group + 1) % left.size();
  }
  return places;
}

// Prompts that a rank may begin at once: all of its block if the rows of every block fit, else as few as possible.
int64_t at_once(std::span<const OpenPrompt> open, std::span<const int64_t> places, int64_t max_rows, int num_groups) {
  for (int group = 0; group < num_groups; ++group) {
    const RankBlock block = rank_block(std::ssize(places), group, num_groups);
    int64_t num_rows = 0;
    for (const int64_t place : places.subspan(static_cast<size_t>(block.begin), static_cast<size_t>(block.size())))
      num_rows += open[static_cast<size_t>(place)].num_rows;
    if (num_rows > max_rows) return 0;
  }
  return std::ssize(places);
}

// What this rank has sampled of each batch.
std::string encode_pieces(std::span<const OpenRows> batches, std::span<const std::vector<int64_t>> prompts,
                          const MetricSet& measured) {
  Encoder out;
  for (size_t i = 0; i < batches.size(); ++i) {
    const std::vector<uint8_t>& is_done = *batches[i].is_done;
    out.text(encode_rows(*batches[i].samples, prompts[i], MetricSet()));
    out.text({reinterpret_cast<const char*>(is_done.data()), is_done.size()});
  }
  out.text(encode_metrics(measured));
  return out.bytes();
}

// A row that is done on its own rank is done.
Result<MetricSet> decode_pieces(std::string_view bytes, std::span<const OpenRows> batches) {
  Decoder in(bytes);
  for (const OpenRows& batch : batches) {
    TRY(decode_rows(in.text(), *batch.samples));
    const std::string is_done = in.text();
    std::vector<uint8_t>& own = *batch.is_done;
    if (is_done.size() != own.size()) return unreadable_rows();
    for (size_t row = 0; row < own.size(); ++row) own[row] = own[row] != 0 || is_done[row] != 0 ? 1 : 0;
  }
  return decode_metrics(in.text());
}

}  // namespace

Result<> collect_segments_on_ranks(RoundRanks& ranks, RolloutRunner& runner, std::span<const OpenRows> batches,
                                   RolloutPlan plan, const RolloutConfig& config, const Tokenizer& tokenizer,
                                   MetricSet& metrics) {
  const auto show = [&](int64_t done, int64_t total) { live_stage(kSamplingStage, "rows", done, total); };
  if (ranks.size() == 1) return runner.collect_segments(batches, plan, tokenizer, &metrics, show);
  const auto group_size = static_cast<int>(config.tensor_model_parallel_size);
  const bool tells = ranks.rank() % group_size == 0;  // the others of its group have the same rows
  const bool keeps_state = TRY(runner.backend().instance().save_state()).has_value();
  const int num_groups = ranks.size() / group_size;
  const std::vector<OpenPrompt> open = open_prompts(batches);
  const std::vector<int64_t> places = dealt(std::ssize(open), num_groups);
  const int64_t max_rows = config.max_num_seqs;
  PromptQueue queue(ranks.group(), std::ssize(open), keeps_state, at_once(open, places, max_rows, num_groups),
                    group_size);
  std::vector<std::vector<int64_t>> taken(batches.size());
  plan.next_prompt = [&]() -> Result<std::optional<int64_t>> {
    const std::optional<int64_t> next = TRY(queue.next());
    if (!next) return std::optional<int64_t>();
    const int64_t place = places[static_cast<size_t>(*next)];
    const OpenPrompt& one = open[static_cast<size_t>(place)];
    taken[one.batch].push_back(one.prompt);
    return std::optional(place);
  };
  plan.max_rows = queue.is_shared() ? max_rows : 0;
  MetricSet measured;
  TRY(runner.collect_segments(batches, plan, tokenizer, &measured, show, [&] { return ranks.check(kRolloutStage); }));
  const std::string told = tells ? encode_pieces(batches, taken, measured) : std::string();
  for (const std::string& bytes : TRY(ranks.exchange(told, kExchangeStage))) {
    if (bytes.empty()) continue;
    const MetricSet of_rank = TRY(decode_pieces(bytes, batches));
    TRY(metrics.merge(of_rank));
  }
  return queue.close();
}

}  // namespace mortise
