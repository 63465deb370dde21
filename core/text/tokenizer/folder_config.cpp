// What a model folder says about its tokenizer outside tokenizer.json: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, chat_template.jinja, additional_chat_templates/. The rules are transformers': a .jinja file wins
// over tokenizer_config.json, and special_tokens_map.json only adds what tokenizer_config.json lacks.
#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace mortise {
namespace {

constexpr std::string_view kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};

Error bad(const Path& file, const std::string& what) {
  return Error{ErrorKind::kData, what, file.string(), "save the tokenizer again"};
}

// A token as text, as {"content": ...}, or nothing (null).
Result<std::optional<AddedToken>> read_token(const Json& spec, const Path& file) {
  if (spec.is_null()) return std::optional<AddedToken>();
  if (spec.is_string()) {
    AddedToken token;
    token.content = spec.get<std::string>();
    token.special = true;
    return std::optional(token);
  }
  AddedToken token = TRY(read_added_token(spec, file.string()));
  token.special = true;
  return std::optional(token);
}

Result<> add_extra_tokens(const Json& extra, const Path& file, FolderConfig& config) {
  if (extra.is_null()) return {};
  if (!extra.is_array() && !extra.is_object())
    return bad(file, "the additional special tokens must be a list or an object");
  for (const auto& [key, value] : extra.items()) {
    const auto token = TRY(read_token(value, file));
    if (!token) continue;
    config.named_tokens.push_back(*token);
    if (extra.is_object()) config.special_tokens.emplace(key, token->content);
  }
  return {};
}

Result<> add_special_tokens(const Json& spec, const Path& file, FolderConfig& config) {
  for (const std::string_view name : kNamedTokens) {
    const Json* value = json_find(spec, name);
    if (value == nullptr) continue;
    const auto token = TRY(read_token(*value, file));
    if (!token || config.special_tokens.contains(std::string(name))) continue;
    config.special_tokens.emplace(name, token->content);
    config.named_tokens.push_back(*token);
  }
  for (const std::string_view name : {"additional_special_tokens", "extra_special_tokens"}) {
    if (const Json* extra = json_find(spec, name)) TRY(add_extra_tokens(*extra, file, config));
  }
  return {};
}

Result<> add_templates(const Json& spec, const Path& file, FolderConfig& config) {
  const Json* value = json_find(spec, "chat_template");
  if (value == nullptr || value->is_null()) return {};
  const std::string place = file.string() + ": chat_template";
  if (value->is_string()) {
    config.chat_templates["default"] = {value->get<std::string>(), place};
    return {};
  }
  if (!value->is_array()) return bad(file, "'chat_template' has to be text or a list of named templates");
  for (const Json& entry : *value) {
    const Json* name = json_find(entry, "name");
    const Json* text = json_find(entry, "template");
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string()) {
      return bad(file, "an entry of 'chat_template' needs a 'name' and a 'template'");
    }
    const auto known = name->get<std::string>();
    config.chat_templates[known] = {text->get<std::string>(), fmt::format("{} {}", place, quote(known))};
  }
  return {};
}

Result<> read_flags(const Json& spec, const Path& file, FolderConfig& config) {
  const std::string name = file.string();
  const ComponentPlace place{"tokenizer_config", name};
  if (const Json* value = json_find(spec, "tokenizer_class"); value != nullptr && value->is_string()) {
    config.tokenizer_class = value->get<std::string>();
  }
  config.split_special_tokens = TRY(component_bool(spec, "split_special_tokens", false, place));
  const auto optional_flag = [&](std::string_view key) -> Result<std::optional<bool>> {
    const Json* value = json_find(spec, key);
    if (value == nullptr || value->is_null()) return std::optional<bool>();
    return std::optional<bool>(TRY(component_bool(spec, key, false, place)));
  };
  config.add_prefix_space = TRY(optional_flag("add_prefix_space"));
  config.legacy = TRY(optional_flag("legacy"));
  config.add_bos_token = TRY(optional_flag("add_bos_token"));
  config.add_eos_token = TRY(optional_flag("add_eos_token"));
  return {};
}

Result<> read_added_tokens(const Json& spec, const Path& file, FolderConfig& config) {
  const Json* table = json_find(spec, "added_tokens_decoder");
  if (table == nullptr || table->is_null()) return {};
  if (!table->is_object()) return bad(file, "'added_tokens_decoder' has to be an object");
  for (const auto& [key, value] : table->items()) {
    const auto id = parse_i64(key);
    if (!id) return bad(file, fmt::format("the key {} of 'added_tokens_decoder' has to be a token id", quote(key)));
    config.added_tokens.emplace_back(*id, TRY(read_added_token(value, file.string())));
  }
  return {};
}

// added_tokens.json of old folders: {"text": id}.
Result<> read_added_tokens_file(const Path& folder, Env& env, FolderConfig& config) {
  const Path file = folder / "added_tokens.json";
  if (!env.exists(file)) return {};
  const Json table = TRY(read_json_file(env, file));
  if (!table.is_object()) return bad(file, "an object of text and id is expected");
  for (const auto& [text, id] : table.items()) {
    if (!id.is_number_integer()) return bad(file, fmt::format("the id of {} has to be a whole number", quote(text)));
    const std::string& content = text;
    const bool known = std::any_of(config.added_tokens.begin(), config.added_tokens.end(),
                                   [&](const auto& entry) { return entry.second.content == content; });
    if (known) continue;
    AddedToken token;
    token.content = content;
    token.special = std::any_of(config.named_tokens.begin(), config.named_tokens.end(),
                                [&](const AddedToken& named) { return named.content == content; });
    token.normalized = !token.special;
    config.added_tokens.emplace_back(id.get<int64_t>(), std::move(token));
  }
  return {};
}

Result<> read_template_files(const Path& folder, Env& env, FolderConfig& config) {
  const Path main = folder / "chat_template.jinja";
  if (env.exists(main)) config.chat_templates["default"] = {TRY(env.read_file(main)), main.string()};
  const Path more = folder / "additional_chat_templates";
  if (!env.exists(more)) return {};
  for (const std::string& name : TRY(env.list_dir(more))) {
    if (Path(name).extension() != ".jinja") continue;
    config.chat_templates[Path(name).stem().string()] = {TRY(env.read_file(more / name)), (more / name).string()};
  }
  return {};
}

}  // namespace

Result<AddedToken> read_added_token(const Json& spec, std::string_view file) {
  const ComponentPlace place{"added token", file};
  AddedToken token;
  token.content = TRY(component_string(spec, "content", place));
  token.single_word = TRY(component_bool(spec, "single_word", false, place));
  token.lstrip = TRY(component_bool(spec, "lstrip", false, place));
  token.rstrip = TRY(component_bool(spec, "rstrip", false, place));
  token.special = TRY(component_bool(spec, "special", false, place));
  token.normalized = TRY(component_bool(spec, "normalized", !token.special, place));
  return token;
}

void set_default_token(FolderConfig& config, const std::string& name, const std::string& text) {
  if (!config.special_tokens.emplace(name, text).second) return;
  AddedToken token;
  token.content = text;
  token.special = true;
  config.named_tokens.push_back(std::move(token));
}

Result<FolderConfig> read_folder_config(const Path& folder, Env& env) {
  FolderConfig config;
  const Path main = folder / "tokenizer_config.json";
  if (env.exists(main)) {
    const Json spec = TRY(read_json_file(env, main));
    if (!spec.is_object()) return bad(main, "an object is expected");
    TRY(read_flags(spec, main, config));
    TRY(add_special_tokens(spec, main, config));
    TRY(read_added_tokens(spec, main, config));
    TRY(add_templates(spec, main, config));
  }
  const Path map = folder / "special_tokens_map.json";
  if (env.exists(map)) {
    const Json spec = TRY(read_json_file(env, map));
    TRY(add_special_tokens(spec, map, config));
  }
  TRY(read_added_tokens_file(folder, env, config));
  TRY(read_template_files(folder, env, config));
  std::sort(config.added_tokens.begin(), config.added_tokens.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return config;
}

}  // namespace mortise
