#include "train/policy_folder.h"

namespace mortise {

Result<PolicyFolder> PolicyFolder::load(Env& env, const RunConfig& config) {
  const Path path = config.model.path;
  if (config.model.path.empty() || !env.exists(path / "config.json")) {
    return Error{ErrorKind::kData, "there is no model folder (no config.json)",
                 config.model.path.empty() ? "model.path" : path.string(), "set model.path to a Hugging Face folder"};
  }
  Tokenizer tokenizer = TRY(Tokenizer::load(path));
  std::optional<ChatTemplate> chat_template;
  if (config.model.custom_chat_template) {
    const std::string source = TRY(env.read_file(*config.model.custom_chat_template));
    chat_template = TRY(ChatTemplate::parse(source, *config.model.custom_chat_template));
  } else if (tokenizer.chat_template() != nullptr) {
    chat_template = TRY(ChatTemplate::parse(*tokenizer.chat_template(), (path / "chat template").string()));
  }
  return PolicyFolder{path, std::move(tokenizer), std::move(chat_template)};
}

PromptEncoder PolicyFolder::encoder(const RunConfig& config) const {
  PromptEncoderOptions options;
  options.prompt_key = config.data.prompt_key;
  options.max_prompt_length = config.data.max_prompt_length;
  options.truncation = parse_truncation(config.data.truncation);
  options.template_kwargs = config.data.apply_chat_template_kwargs;
  return PromptEncoder(tokenizer, chat_template, options);
}

std::vector<int64_t> stop_ids_of(const ModelConfig& model, const Tokenizer& tokenizer) {
  if (!model.eos_token_ids.empty()) return model.eos_token_ids;
  if (tokenizer.eos_id()) return {*tokenizer.eos_id()};
  return {};
}

}  // namespace mortise
