// The guides of one model, by pattern and end ids: those used last are kept.
// Cost: the first one sorts the vocabulary (about 0.1 s for 150,000 tokens). Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/guide/token_guide.h"

namespace mortise {

class GuideShelf {
 public:
  static constexpr size_t kMostGuides = 8;

  // `tokenizer`: null if the model has none, and then every guide is an error; else it outlives the shelf. `vocab_size`: the
  // model's. End ids are below it.
  GuideShelf(const Tokenizer* tokenizer, int64_t vocab_size) : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  Result<std::shared_ptr<TokenGuide>> get(const std::string& pattern, std::span<const int64_t> end_ids);

 private:
  struct Kept {
    std::string pattern;
    std::vector<int64_t> end_ids;
    std::shared_ptr<TokenGuide> guide;
  };
  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
  std::shared_ptr<const VocabularyTrie> vocabulary_;
  std::list<Kept> guides_;  // the one used last first
};

}  // namespace mortise
