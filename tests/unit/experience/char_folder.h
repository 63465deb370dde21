// A folder with a character tokenizer, for tests that need ids from text.
#pragma once

#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise::test {

class CharFolder {
 public:
  explicit CharFolder(const std::string& characters = "0123456789+=abcdefgh :",
                      const std::vector<std::string>& more_special_tokens = {}) {
    CharTokenizerSpec spec;
    spec.characters = characters;
    spec.special_tokens = {"<|pad|>", "<|end|>"};
    spec.special_tokens.insert(spec.special_tokens.end(), more_special_tokens.begin(), more_special_tokens.end());
    spec.roles = {{"pad_token", "<|pad|>"}, {"eos_token", "<|end|>"}};
    const CharTokenizerFiles files = make_char_tokenizer(spec).value();
    dir_.write("tokenizer.json", files.tokenizer_json);
    dir_.write("tokenizer_config.json", files.tokenizer_config_json);
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    return dir_.write(name, text).string();
  }
  [[nodiscard]] Tokenizer tokenizer() const { return Tokenizer::load(dir_.path()).value(); }

 private:
  TempDir dir_;
};

}  // namespace mortise::test
