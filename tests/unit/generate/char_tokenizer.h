// A tokenizer of single printable ASCII characters for the tests' small models: <unk> is 0, <eos> 1, ' ' 2, 'a' is 67.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "generate/schedule/scheduler.h"
#include "support/temp_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace mortise {

inline Tokenizer char_tokenizer() {
  CharTokenizerSpec spec;
  for (char c = ' '; c <= '~'; ++c) spec.characters += c;
  spec.special_tokens = {"<unk>", "<eos>"};
  spec.roles = {{"eos_token", "<eos>"}};
  const auto files = make_char_tokenizer(spec);
  EXPECT_TRUE(files.ok());
  const test::TempDir dir;
  dir.write("tokenizer.json", files->tokenizer_json);
  dir.write("tokenizer_config.json", files->tokenizer_config_json);
  auto loaded = Tokenizer::load(dir.path());
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().to_string());
  return *std::move(loaded);
}

inline SamplingParams guided(const std::string& pattern, double temperature = 1.3) {
  SamplingParams params;
  params.regex = pattern;
  params.temperature = temperature;
  params.max_new_tokens = 24;
  params.stop_ids = {1};
  return params;
}

}  // namespace mortise
