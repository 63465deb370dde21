// Tokenizer files of model folders: copying them, and making those of a character tokenizer.
#include <fmt/core.h>
#include <array>
#include <set>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr std::array<std::string_view, 9> kFiles = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "chat_template.jinja",   "chat_template.json",      "tokenizer.model"};
constexpr std::string_view kTemplateFolder = "additional_chat_templates";

Json added_token(const std::string& text, int64_t id) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

Result<std::vector<std::string>> list_tokenizer_files(const Path& folder, Env& env) {
  std::vector<std::string> names;
  for (const std::string_view name : kFiles) {
    if (env.exists(folder / name)) names.emplace_back(name);
  }
  if (!env.exists(folder / kTemplateFolder)) return names;
  for (const std::string& name : TRY(env.list_dir(folder / kTemplateFolder))) {
    if (Path(name).extension() == ".jinja") names.push_back(fmt::format("{}/{}", kTemplateFolder, name));
  }
  return names;
}

Result<> save_tokenizer_files(const Path& source_folder, const Path& target_folder, Env& env) {
  for (const std::string& name : TRY(list_tokenizer_files(source_folder, env))) {
    const std::string bytes = TRY(env.read_file(source_folder / name));
    TRY(env.create_dirs((target_folder / name).parent_path()));
    TRY(write_file(env, target_folder / name, bytes));
  }
  return {};
}

Result<CharTokenizerFiles> make_char_tokenizer(const CharTokenizerSpec& spec) {
  if (spec.special_tokens.empty()) {
    return Error{ErrorKind::kConfig, "a character tokenizer needs a special token for unknown characters", "",
                 "name one first"};
  }
  if (const auto bad = find_invalid_utf8(spec.characters)) {
    return Error{ErrorKind::kConfig, "the characters are not UTF-8 at byte " + std::to_string(*bad), "", ""};
  }
  Json vocab = Json::object();
  Json added = Json::array();
  std::set<std::string> seen;
  const auto take = [&](const std::string& text) -> Result<> {
    if (text.empty() || !seen.insert(text).second)
      return Error{ErrorKind::kConfig, fmt::format("the token {} is empty or given twice", quote(text)), "", ""};
    vocab.push_back({text, static_cast<int64_t>(vocab.size())});
    return {};
  };
  for (const std::string& token : spec.special_tokens) {
    added.push_back(added_token(token, static_cast<int64_t>(vocab.size())));
    TRY(take(token));
  }
  for (size_t pos = 0; pos < spec.characters.size();) {
    const size_t begin = pos;
    unicode::next_code_point(spec.characters, pos);
    TRY(take(spec.characters.substr(begin, pos - begin)));
  }
  CharTokenizerFiles files;
  // The pattern that matches any character, also a newline. Each match is a piece.
  files.tokenizer_json =
      dump_json({{"version", "1.0"},
                 {"truncation", nullptr},
                 {"padding", nullptr},
                 {"added_tokens", added},
                 {"normalizer", nullptr},
                 {"pre_tokenizer",
                  {{"type", "Split"}, {"pattern", {{"Regex", "(?m:.)"}}}, {"behavior", "Isolated"}, {"invert", false}}},
                 {"post_processor", nullptr},
                 {"decoder", {{"type", "Fuse"}}},
                 {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", spec.special_tokens.front()}}}},
                2);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"unk_token", spec.special_tokens.front()}};
  for (const auto& [role, token] : spec.roles) {
    if (!seen.contains(token))
      return Error{ErrorKind::kConfig,
                   fmt::format("the token {} of {} is not in the vocabulary", quote(token), quote(role)), "", ""};
    config[role] = token;
  }
  if (!spec.chat_template.empty()) config["chat_template"] = spec.chat_template;
  files.tokenizer_config_json = dump_json(config, 2);
  return files;
}

}  // namespace mortise
