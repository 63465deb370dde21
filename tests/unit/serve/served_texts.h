// The texts of a served model whose tokenizer has a token per letter.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/service.h"
#include "support/temp_dir.h"

namespace mortise::test {

// <pad> 0, <end> 1, then `specials`, then `letters`. A chat's prompt is its messages with `end_of_message` after each.
inline ServedTexts letter_texts(const TempDir& dir, const std::string& letters, const std::string& end_of_message = "",
                                std::vector<std::string> specials = {}) {
  specials.insert(specials.begin(), {"<pad>", "<end>"});
  const auto files = make_char_tokenizer({letters,
                                          std::move(specials),
                                          {{"eos_token", "<end>"}},
                                          "{% for m in messages %}{{ m.content }}" + end_of_message + "{% endfor %}"})
                         .value();
  dir.write("tokenizer.json", files.tokenizer_json);
  dir.write("tokenizer_config.json", files.tokenizer_config_json);
  ServedTexts texts;
  texts.model_name = "m";
  texts.tokenizer = Tokenizer::load(dir.path()).value();
  texts.chat_templates = ChatTemplates::of_folder(*texts.tokenizer).value();
  return texts;
}

}  // namespace mortise::test
