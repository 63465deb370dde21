// The parts of a loaded tokenizer. load.cpp fills them, tokenizer.cpp uses them. Constant after loading.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

struct TokenizerParts {
  Path folder;
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: none
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  DecoderChain decoder;
  AddedTokens added;
  bool split_special_tokens = false;                     // special tokens inside a text are plain text
  std::map<std::string, std::string> special_tokens;     // "eos_token" -> text
  std::map<std::string, TemplateSource> chat_templates;  // by name; a folder with one calls it "default"

  [[nodiscard]] int32_t token_id(std::string_view text) const {
    const int32_t id = added.find(text);
    return id != kNoToken ? id : model->vocab().find(text);
  }
  [[nodiscard]] std::optional<std::string_view> token_text(int64_t id) const {
    if (const std::string* text = added.shown_text(id)) return *text;
    const std::string_view* text = model->vocab().text(id);
    return text == nullptr ? std::nullopt : std::optional(*text);
  }
};

// tokenizer_config.json, special_tokens_map.json, chat templates (folder_config.cpp).
struct FolderConfig {
  std::string tokenizer_class;
  std::optional<bool> add_prefix_space;  // for classes that are built from vocab.json or tokenizer.model
  std::optional<bool> legacy;            // for classes that are built from tokenizer.model
  bool split_special_tokens = false;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::vector<std::pair<int64_t, AddedToken>> added_tokens;  // added_tokens_decoder, by id
  std::vector<AddedToken> named_tokens;                      // bos, eos, unk, ... and additional ones: to be special
  std::map<std::string, std::string> special_tokens;
  std::map<std::string, TemplateSource> chat_templates;
};

Result<FolderConfig> read_folder_config(const Path& folder, Env& env);
// A named token that the folder does not name.
void set_default_token(FolderConfig& config, const std::string& name, const std::string& text);
// From tokenizer.model (sentencepiece.cpp).
Result<> load_sentencepiece(const Path& file, Env& env, FolderConfig& config, TokenizerParts& parts);
// An added token from its JSON object.
Result<AddedToken> read_added_token(const Json& spec, std::string_view file);

}  // namespace mortise
