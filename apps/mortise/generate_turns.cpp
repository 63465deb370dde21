// See generate_turns.h.
#include "generate_turns.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "config/check.h"
#include "experience/plugin_settings.h"
#include "experience/reward/reward_runner.h"
#include "experience/rollout/rollout_runner.h"
#include "foundation/base/choice.h"
#include "foundation/formats/jsonl.h"
#include "foundation/formats/rows/row_reader.h"
#include "generate/extension.h"
#include "learn/update/rank_share.h"
#include "model/model.h"
#include "mortise/ext/generate.h"
#include "plugin/host/host_services.h"
#include "train/report/completion_files.h"
#include "train/run/policy_folder.h"
#include "train/run/run_parts.h"
#include "train/run/threads.h"
#include "train/run/turn_parts.h"

namespace mortise {
namespace {

Result<PromptBatch> read_chats(Env& env, const Path& path, const PromptEncoder& encoder, int64_t vocab_size) {
  PromptBatch out;
  const auto reader = TRY(open_rows(env, path));
  while (const std::optional<RawRow> raw = TRY(reader->next())) {
    const Json row = TRY(reader->parse(*raw));
    const std::string where = reader->place(raw->number);
    if (const Json* const seed = json_find(row, "seed"); seed != nullptr && !seed->is_null())
      return Error{ErrorKind::kData, "a row with several turns cannot have a seed of its own", where,
                   "remove 'seed', and set rollout.seed for all rows"};
    Prompt& prompt = out.prompts.emplace_back(TRY(encoder.encode(row, where, vocab_size)));
    prompt.dataset_row = static_cast<int64_t>(out.prompts.size()) - 1;
    TRY(encoder.apply_length_policy(prompt, where));
  }
  return out;
}

Result<> check_options(const LoadedConfig& loaded) {
  if (loaded.config.rollout.top_log_probs == 0) return {};
  return Error{ErrorKind::kConfig, "rows with several turns have no top log-probs",
               loaded.where("rollout.top_log_probs"), "remove it, or set rollout.multi_turn.enable = false"};
}

// Before episodes are played that nobody could keep. A pipe is not opened twice: its reader would see an end.
Result<> check_output(Env& env, const Path& out) {
  const auto info = env.info(out);
  if (info.ok() && !info->is_file && !info->is_directory) return {};
  TRY(NewJsonlFile::create(env, out));
  return {};
}

RolloutPlan plan_of(const RunConfig& config, const ModelConfig& model, const Sampling& sampling) {
  RolloutPlan plan;
  plan.num_samples = config.rollout.n;
  plan.sampling = sampling;
  plan.seed = static_cast<uint64_t>(config.rollout.seed.value_or(config.trainer.seed));
  plan.vocab_size = model.vocab_size;
  plan.stop_on_signal = true;
  return plan;
}

// The environment's own rewards. Those of [[reward]] tables need data that prompts may lack: `mortise eval` has them.
Result<ScoredBatch> environment_rewards(PluginRegistry& registry, const RunConfig& config, const RunKey& key,
                                        bool gives_rewards, const PromptBatch& prompts, const SampleBatch& samples) {
  if (!gives_rewards) {
    ScoredBatch none;
    none.rewards.assign(samples.rows.size(), std::numeric_limits<double>::quiet_NaN());
    return none;
  }
  RewardRunner runner = TRY(
      RewardRunner::create(registry, {}, key, config.plugins.max_failed_fraction, isolation_options(config.plugins)));
  runner.use_environment(config.rollout.multi_turn.reward_weight);
  ScoreContext context;
  context.max_response_length = response_length(config);
  return runner.score(prompts, samples, context, nullptr);
}

Json summary_of(const Path& out, const PromptBatch& prompts, const SampleBatch& samples) {
  int64_t num_tokens = 0, num_turns = 0, num_failed = 0;
  for (const Sample& sample : samples.rows) {
    num_tokens += std::ranges::count(sample.turns.is_sampled, uint8_t{1});
    num_turns += sample.turns.num_assistant;
    num_failed += sample.turns.failure.empty() ? 0 : 1;
  }
  return {{"out", out.string()},
          {"prompts", prompts.prompts.size()},
          {"completion_tokens", num_tokens},
          {"turns", num_turns},
          {"failed_rows", num_failed}};
}

}  // namespace

Result<Json> generate_turns(Env& env, const LoadedConfig& loaded, const ComputeDevice& device, const Path& prompt_file,
                            const Path& out) {
  constexpr std::string_view kPlays[] = {"environment"};
  const RunConfig& config = loaded.config;
  TRY(check_options(loaded));
  TRY(check_output(env, out));
  PluginRegistry registry = TRY(open_registry(loaded));
  TRY(check_plugins(registry, loaded, kPlays));
  Model model = TRY(Model::load(env, config.model.path, std::string(choice_name(config.model.dtype))));
  TRY(model.move_to(device));
  if (model.config().rope_switch() > 0) model.set_rope_length(config.data.max_prompt_length + response_length(config));
  const PolicyFolder folder = TRY(PolicyFolder::load(env, config));
  RunKey key;
  key.seed = static_cast<uint64_t>(config.trainer.seed);
  StartedEnvironment environment = TRY(start_environment(registry, loaded, key));
  const bool gives_rewards = environment.gives_rewards;
  const PromptEncoder encoder = folder.encoder(config, &environment.tools);
  const PromptBatch prompts = TRY(read_chats(env, prompt_file, encoder, model.config().vocab_size));
  TRY(check_num_rows(loaded, static_cast<int64_t>(prompts.prompts.size()), "rollout.n"));

  const EngineOptions options = rollout_engine_options(config, &folder.tokenizer);
  const Sampling sampling = TRY(rollout_sampling(config, model.config(), &folder.tokenizer));
  install_generate_model(&model, options);
  register_host_extension(MORTISE_EXT_GENERATE, generate_extension());
  // The engine's own backend: an older or a served copy of the weights is not what --model names.
  RolloutRunner runner = TRY(RolloutRunner::create(registry, RolloutConfig().name, Json::object(), key));
  runner.use_turns(TRY(make_turn_parts(std::move(environment), loaded, folder, encoder, sampling, alone())));
  SampleBatch samples =
      TRY(runner.collect(prompts, plan_of(config, model.config(), sampling), folder.tokenizer, nullptr));
  const ScoredBatch scored = TRY(environment_rewards(registry, config, key, gives_rewards, prompts, samples));
  if (!config.rollout.calculate_log_probs) {
    for (Sample& sample : samples.rows) sample.log_prob.clear();
  }
  TRY(write_completions(env, out, Completions{.step = 0, .prompts = prompts, .samples = samples, .scored = scored}));
  return summary_of(out, prompts, samples);
}

}  // namespace mortise
