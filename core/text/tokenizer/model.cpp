// See model.h: the word-level and WordPiece models, and the choice of a model by name.
#include "text/tokenizer/model.h"

#include <fmt/core.h>

#include "foundation/base/text.h"
#include "text/tokenizer/bounds.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/piece_trie.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

class WordLevel final : public TokenModel {
 public:
  WordLevel(Vocab vocab, std::string unk)
      : vocab_(std::move(vocab)), unk_(std::move(unk)), unk_id_(vocab_.find(unk_)) {}

  Result<> tokenize(std::string_view piece, std::vector<int64_t>& out) const override {
    int32_t id = vocab_.find(piece);
    if (id == kNoToken) id = unk_id_;
    if (id == kNoToken) {
      return Error{ErrorKind::kData,
                   fmt::format("the word {} is not in the vocabulary, and neither is the unknown token {}",
                               quote(piece), quote(unk_)),
                   "", ""};
    }
    out.push_back(id);
    return {};
  }
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }

 private:
  Vocab vocab_;
  std::string unk_;
  int32_t unk_id_;
};

class WordPiece final : public TokenModel {
 public:
  WordPiece(Vocab vocab, int32_t unk_id, std::string_view prefix, size_t max_chars)
      : vocab_(std::move(vocab)),
        unk_id_(unk_id),
        max_chars_(max_chars),
        first_(texts_of(vocab_, "")),
        following_(texts_of(vocab_, prefix)) {}

  Result<> tokenize(std::string_view piece, std::vector<int64_t>& out) const override {
    const size_t before = out.size();
    StepBudget budget(piece.size());
    bool known = unicode::count_code_points(piece) <= max_chars_;
    for (size_t begin = 0; known && begin < piece.size();) {
      size_t end = begin;
      int32_t id = kNoToken;
      const size_t num_steps =
          (begin > 0 ? following_ : first_).walk(piece, begin, [&](size_t found_end, int32_t found) {
            end = found_end;
            id = found;
          });
      if (!budget.spend(num_steps)) return StepBudget::spent();
      known = id != kNoToken;
      if (known) out.push_back(id);
      begin = end;
    }
    if (!known) {
      out.resize(before);
      out.push_back(unk_id_);
    }
    return {};
  }
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }

 private:
  // The possible beginnings of a word ("" as prefix), or of its continuation.
  static std::vector<std::pair<std::string_view, int32_t>> texts_of(const Vocab& vocab, std::string_view prefix) {
    std::vector<std::pair<std::string_view, int32_t>> out;
    vocab.for_each([&](std::string_view text, int32_t id) {
      if (text.starts_with(prefix) && text.size() > prefix.size()) out.emplace_back(text.substr(prefix.size()), id);
    });
    return out;
  }

  Vocab vocab_;
  int32_t unk_id_;
  size_t max_chars_;
  PieceTrie first_;
  PieceTrie following_;
};

}  // namespace

Result<Vocab> read_vocab(const Json& spec, const ComponentPlace& place) {
  const Json* entries = json_find(spec, "vocab");
  if (entries == nullptr || !entries->is_object()) return place.fail("'vocab' has to be an object of text and id");
  Vocab vocab;
  vocab.reserve(entries->size());
  for (const auto& [text, id] : entries->items()) {
    if (!id.is_number_integer()) return place.fail(fmt::format("the id of {} has to be a whole number", quote(text)));
    TRY(vocab.add(text, id.get<int64_t>(), place.file));
  }
  return vocab;
}

Result<std::unique_ptr<TokenModel>> make_word_level(const Json& spec, const ComponentPlace& place) {
  std::string unk = TRY(component_string(spec, "unk_token", place));
  return std::make_unique<WordLevel>(TRY(read_vocab(spec, place)), std::move(unk));
}

Result<std::unique_ptr<TokenModel>> make_word_piece(const Json& spec, const ComponentPlace& place) {
  Vocab vocab = TRY(read_vocab(spec, place));
  const std::string unk = TRY(component_string(spec, "unk_token", place));
  const int32_t unk_id = vocab.find(unk);
  if (unk_id == kNoToken) return place.fail(fmt::format("the unknown token {} is not in the vocabulary", quote(unk)));
  const std::string prefix = TRY(component_string(spec, "continuing_subword_prefix", place));
  const int64_t max_chars = TRY(component_int(spec, "max_input_chars_per_word", 100, place));
  if (prefix.size() > kMaxAffixBytes) return place.fail("'continuing_subword_prefix' is too long");
  return std::make_unique<WordPiece>(std::move(vocab), unk_id, prefix,
                                     static_cast<size_t>(std::max<int64_t>(max_chars, 0)));
}

Result<std::unique_ptr<TokenModel>> make_model(const Json& spec, const ComponentPlace& place) {
  std::string type;
  if (json_find(spec, "type") != nullptr) {
    type = TRY(component_type(spec, place));
  } else if (json_find(spec, "merges") != nullptr) {
    type = "BPE";  // files of old versions leave the name out
  }
  if (type == "BPE") return make_bpe(spec, place);
  if (type == "WordLevel") return make_word_level(spec, place);
  if (type == "WordPiece") return make_word_piece(spec, place);
  if (type == "Unigram") return make_unigram(spec, place);
  return place.unsupported(type);
}

}  // namespace mortise
