// Loads tokenizer, templates and end tokens, and makes the options of the rollout engine.
#include "train/run/policy_folder.h"

#include <fmt/core.h>

#include <algorithm>

#include "config/check.h"
#include "foundation/base/log.h"
#include "model/adapters/lora.h"
#include "text/guide/guide_shelf.h"

namespace mortise {

Result<Path> tokenizer_folder(Env& env, const Path& folder) {
  if (!is_adapter_folder(env, folder) || !TRY(list_tokenizer_files(folder, env)).empty()) return folder;
  return find_model_folder(env, folder);
}

Result<> check_policy(Env& env, const Path& folder) {
  const ModelConfig config = TRY(read_model_folder_config(env, folder));
  if (config.is_classifier) {
    return Error{ErrorKind::kConfig, "a sequence classifier has no vocabulary head to sample from", folder.string(),
                 "name a causal language model in model.path; critic.model.path and rewards take classifiers"};
  }
  const Path base = TRY(find_model_folder(env, folder));
  return check_trainable(config, base);
}

Result<PolicyFolder> PolicyFolder::load(Env& env, const RunConfig& config) {
  const Path path = config.model.path;
  if (config.model.path.empty()) {
    return Error{ErrorKind::kConfig, "'model.path' is not set", "", "set it to a Hugging Face folder"};
  }
  if (!env.exists(path / "config.json") && !is_adapter_folder(env, path)) return no_model_folder(env, path);
  const Path tokenizer_path = TRY(tokenizer_folder(env, path));
  Tokenizer tokenizer = TRY(Tokenizer::load(tokenizer_path));
  ChatTemplates chat_templates;
  if (config.model.custom_chat_template) {
    const std::string source = TRY(env.read_file(*config.model.custom_chat_template));
    chat_templates = TRY(ChatTemplates::single(source, *config.model.custom_chat_template, tokenizer));
  } else {
    auto own = ChatTemplates::of_folder(tokenizer);
    if (!own.ok() && own.error().next.empty())
      own.error().next = "correct it, or name another file with model.custom_chat_template";
    chat_templates = TRY(std::move(own));
  }
  return PolicyFolder{tokenizer_path, std::move(tokenizer), std::move(chat_templates)};
}

PromptEncoder PolicyFolder::encoder(const RunConfig& config, const Json* tools) const {
  PromptEncoderOptions options;
  options.prompt_key = config.data.prompt_key;
  options.max_prompt_length = config.data.max_prompt_length;
  options.truncation = config.data.truncation;
  options.template_kwargs = config.data.apply_chat_template_kwargs;
  options.system_prompt = config.data.system_prompt.value_or("");
  options.only_chats = tools != nullptr;
  if (tools != nullptr) options.tools = *tools;
  return PromptEncoder(tokenizer, chat_templates, options);
}

std::vector<int64_t> stop_ids_of(const ModelConfig& model, const Tokenizer* tokenizer) {
  std::vector<int64_t> ids = model.eos_token_ids;
  if (ids.empty() && tokenizer != nullptr && tokenizer->eos_id()) ids.push_back(*tokenizer->eos_id());
  // transformers reads such a folder too: the id never comes.
  std::erase_if(ids, [&](int64_t id) {
    const bool is_outside = id < 0 || id >= model.vocab_size;
    if (is_outside)
      log_warn_once(fmt::format(
          "the end id {} (eos_token_id of the model folder) is outside the vocabulary of {} and can never be sampled",
          id, model.vocab_size));
    return is_outside;
  });
  return ids;
}

namespace {

// rollout.kernels; auto and plain leave the choice open.
Isa isa_of(DecodeKernels kernels) {
  switch (kernels) {
    case DecodeKernels::kBase:
      return Isa::kBase;
    case DecodeKernels::kAvx2:
      return Isa::kAvx2;
    case DecodeKernels::kAvx512:
      return Isa::kAvx512;
    case DecodeKernels::kAvx512Bf16:
      return Isa::kAvx512Bf16;
    case DecodeKernels::kAuto:
    case DecodeKernels::kPlain:
      break;
  }
  return Isa::kAuto;
}

}  // namespace

EngineOptions rollout_engine_options(const RunConfig& config, const Tokenizer* tokenizer) {
  EngineOptions options;
  options.max_num_seqs = config.rollout.max_num_seqs;
  options.max_batch_tokens = config.rollout.max_num_batched_tokens;
  options.kv_cache_bytes = config.rollout.kv_cache_mib << 20;
  options.has_graphs = !config.rollout.enforce_eager;
  options.tokenizer = tokenizer;
  options.deterministic = config.rollout.deterministic;
  options.rollout_regex = config.rollout.structured_outputs_regex.value_or("");
  if (config.rollout.dtype == DecodeDtype::kBfloat16) options.weights = WeightFormat::kBfloat16;
  // The fast kernels are float32.
  if (config.rollout.kernels == DecodeKernels::kPlain || config.model.dtype == ModelDtype::kFloat64)
    options.path = GeneratePath::kPlain;
  options.isa = isa_of(config.rollout.kernels);
  options.records_experts = config.actor.router_replay.mode == RouterReplay::kR3;
  return options;
}

namespace {

// A word at the start of a text and after a space: most vocabularies have different tokens there.
Result<> add_bad_word(const std::string& word, const Tokenizer& tokenizer, Sampling& out) {
  for (const std::string& text : {word, " " + word}) {
    auto ids = tokenizer.encode(text);
    if (!ids.ok()) return Error{ErrorKind::kConfig, ids.error().what, "rollout.bad_words", "write the text in UTF-8"};
    const auto& words = out.bad_words;
    if (!ids->empty() && std::find(words.begin(), words.end(), *ids) == words.end())
      out.bad_words.push_back(*std::move(ids));
  }
  return {};
}

// A pattern that guides sampling: is it one, also if servers sample?
Result<> add_pattern(const std::string& pattern, const ModelConfig& model, const Tokenizer* tokenizer, Sampling& out) {
  const auto guide = GuideShelf(tokenizer, model.vocab_size).get(pattern, out.stop_ids);
  if (!guide.ok())
    return Error{ErrorKind::kConfig, guide.error().what, "rollout.structured_outputs_regex", guide.error().next};
  out.regex = pattern;
  return {};
}

}  // namespace

Result<Sampling> rollout_sampling(const RunConfig& config, const ModelConfig& model, const Tokenizer* tokenizer) {
  const RolloutConfig& rollout = config.rollout;
  Sampling out;
  out.max_new_tokens = response_length(config);
  out.min_new_tokens = rollout.min_new_tokens;
  out.temperature = rollout.temperature;
  out.top_k = rollout.top_k;
  out.top_p = rollout.top_p;
  out.min_p = rollout.min_p;
  out.typical_p = rollout.typical_p;
  out.repetition_penalty = rollout.repetition_penalty;
  out.presence_penalty = rollout.presence_penalty;
  out.frequency_penalty = rollout.frequency_penalty;
  out.ignore_eos = rollout.ignore_eos;
  out.stop_ids = stop_ids_of(model, tokenizer);
  for (const int64_t id : rollout.stop_token_ids) {
    if (id >= model.vocab_size) {
      return Error{ErrorKind::kConfig,
                   fmt::format("the id {} is outside the model's vocabulary of {}", id, model.vocab_size),
                   "rollout.stop_token_ids", "correct the list"};
    }
    out.stop_ids.push_back(id);
  }
  if (tokenizer == nullptr && (!rollout.stop.empty() || !rollout.bad_words.empty())) {
    return Error{ErrorKind::kConfig, "the model folder has no tokenizer, and texts need one",
                 rollout.stop.empty() ? "rollout.bad_words" : "rollout.stop",
                 "give rollout.stop_token_ids, or a folder with a tokenizer"};
  }
  out.stop_strings = rollout.stop;
  for (const std::string& word : rollout.bad_words) TRY(add_bad_word(word, *tokenizer, out));
  if (rollout.structured_outputs_regex) TRY(add_pattern(*rollout.structured_outputs_regex, model, tokenizer, out));
  return out;
}

}  // namespace mortise
