// Tokenizer: text to token ids and back, as a Hugging Face model folder defines it.
//
// It reads tokenizer.json, or vocab.json + merges.txt with the class that tokenizer_config.json names, and the special
// tokens and chat templates of the folder. An unsupported component is an error that names it and its file. encode:
// normalise, cut, look up; linear in the text. decode: linear in the ids.
// Thread rule: a Tokenizer is constant and cheap to copy; any number of threads may encode and decode at once. An
// IncrementalDecoder belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/env.h"
#include "foundation/base/result.h"

namespace mortise {

struct TokenizerParts;

// Shows a growing list of ids as text, never half a character. Its outputs, joined, are the decoded text. (If a run of
// <0xNN> tokens breaks after whole characters, those were shown and are not taken back.)
class IncrementalDecoder {
 public:
  IncrementalDecoder(IncrementalDecoder&&) noexcept;
  IncrementalDecoder& operator=(IncrementalDecoder&&) noexcept;
  ~IncrementalDecoder();

  // The text that can be shown after this id.
  std::string push(int64_t id);
  // What was held back. The decoder is spent.
  std::string finish();

 private:
  friend class Tokenizer;
  struct State;
  explicit IncrementalDecoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A chat template of a model folder.
struct TemplateSource {
  std::string text;
  std::string place;  // its place: "DIR/chat_template.jinja", "DIR/tokenizer_config.json: chat_template"
};

class Tokenizer {
 public:
  static Result<Tokenizer> load(const Path& folder, Env& env = default_env());

  // Refuses text that is not UTF-8, with the offset of the first bad byte. add_special_tokens: those of the
  // post-processor (a leading <s>, say); added tokens inside the text are always recognised.
  [[nodiscard]] Result<std::vector<int64_t>> encode(std::string_view text, bool add_special_tokens = false) const;
  // Ids without a token are left out. No clean-up of spaces.
  [[nodiscard]] std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;
  [[nodiscard]] IncrementalDecoder incremental_decoder(bool skip_special_tokens = false) const;

  // Largest id + 1, added tokens included.
  [[nodiscard]] int64_t vocab_size() const;
  [[nodiscard]] std::optional<int64_t> token_id(std::string_view token) const;
  // The token's text as in the vocabulary (with byte-level characters).
  [[nodiscard]] std::optional<std::string> token_text(int64_t id) const;
  [[nodiscard]] bool is_special(int64_t id) const;
  // What the token adds to a text, behind other tokens: its bytes, perhaps those of a part of a character. Empty if the id
  // has no token. An error if that depends on the other tokens, as with WordPiece. A space that decode() drops at the start
  // of a text is there.
  [[nodiscard]] Result<std::string> token_bytes(int64_t id) const;

  [[nodiscard]] std::optional<int64_t> bos_id() const;
  [[nodiscard]] std::optional<int64_t> eos_id() const;
  [[nodiscard]] std::optional<int64_t> pad_id() const;
  // "bos_token" -> "<s>", ...: the texts of the named special tokens, as chat templates want them.
  [[nodiscard]] const std::map<std::string, std::string>& special_tokens() const;

  // The folder's chat template: with tools the one named "tool_use" if there is one, else "default". Null if there is
  // none.
  [[nodiscard]] const TemplateSource* chat_template(bool with_tools = false) const;
  [[nodiscard]] const std::map<std::string, TemplateSource>& chat_templates() const;

  // The files of the folder that belong to the tokenizer (names), for copying.
  [[nodiscard]] const Path& folder() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const TokenizerParts> parts_;
};

// The existing files of a model folder that make its tokenizer, with names relative to the folder.
Result<std::vector<std::string>> list_tokenizer_files(const Path& folder, Env& env = default_env());
// Copies the tokenizer files of a model folder, byte for byte. The target folder has to exist.
Result<> save_tokenizer_files(const Path& source_folder, const Path& target_folder, Env& env = default_env());

// A tokenizer whose tokens are single characters: first the ids of the special tokens, then `characters` in order. Any
// other character becomes the first special token.
struct CharTokenizerSpec {
  std::string characters;
  std::vector<std::string> special_tokens;   // at least one
  std::map<std::string, std::string> roles;  // "eos_token" -> one of the tokens
  std::string chat_template;                 // may be empty
};
struct CharTokenizerFiles {
  std::string tokenizer_json;         // -> tokenizer.json
  std::string tokenizer_config_json;  // -> tokenizer_config.json
};
Result<CharTokenizerFiles> make_char_tokenizer(const CharTokenizerSpec& spec);

}  // namespace mortise
