// See served_folder.h.
#include "served_folder.h"

#include "foundation/base/choice.h"
#include "text/tools/tool_format_of.h"
#include "weight_receiver.h"

namespace mortise {

Result<std::unique_ptr<ServedFolder>> ServedFolder::load(Env& env, const RunConfig& config, const ComputeDevice& device,
                                                         const std::string& name, const std::string& api_key,
                                                         std::optional<ToolCallParser> parser) {
  Model model = TRY(Model::load(env, config.model.path, std::string(choice_name(config.model.dtype))));
  TRY(model.move_to(device));
  std::unique_ptr<ServedFolder> out(new ServedFolder(std::move(model)));
  ServedTexts texts;
  texts.model_name = name;
  const Path tokenizer_path = TRY(tokenizer_folder(env, config.model.path));
  if (!TRY(list_tokenizer_files(tokenizer_path, env)).empty()) {
    const PolicyFolder& folder = out->folder_.emplace(TRY(PolicyFolder::load(env, config)));
    texts.tokenizer = folder.tokenizer;
    texts.chat_templates = folder.chat_templates;
    texts.tool_format = parser ? *parser : tool_format_of(texts.chat_templates);
  }
  EngineOptions options = rollout_engine_options(config, out->folder_ ? &out->folder_->tokenizer : nullptr);
  if (out->model_.dtype() != at::kFloat) options.path = GeneratePath::kPlain;
  out->generator_ =
      TRY(GeneratorModel::create(env, out->model_, options, stop_ids_of(out->model_.config(), options.tokenizer)));
  out->loop_.emplace(*out->generator_);
  out->service_.emplace(*out->loop_, std::move(texts),
                        ServiceOptions{api_key, MORTISE_VERSION, make_weight_receiver(env)}, env);
  return out;
}

}  // namespace mortise
