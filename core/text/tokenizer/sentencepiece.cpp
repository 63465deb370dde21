// A folder whose only tokenizer file is a SentencePiece model (tokenizer.model): its parts, which encode as
// SentencePiece does.
//
// The whole text between added tokens is one piece for the model. Control pieces (<s>) are special added tokens, as in
// transformers. User-defined pieces are added tokens in the normalised text. The space in front (add_dummy_prefix) is
// at the start of the text only, or, with "legacy": true in tokenizer_config.json, of every stretch between added
// tokens. Decoding is as for Llama's tokenizer.json.
// Not supported: word and character models, unused pieces, white space as a suffix, denormalizers.
#include <fmt/core.h>
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "foundation/base/text.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/sentencepiece_file.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

using File = SentencePieceFile;
using PieceType = File::PieceType;

constexpr size_t kMaxPieceBytes = 512;  // bytes of a BPE model's piece: every place where it may be cut in two is tried
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581 means a space

struct SpaceRules {
  enum class Prefix { kNever, kStartOfText, kEveryStretch };
  Prefix prefix = Prefix::kStartOfText;
  bool remove_extra = false;  // at both ends, and of several all but one
};

class SentencePieceNormalizer final : public Normalizer {
 public:
  SentencePieceNormalizer(std::optional<Charsmap> table, TokenTrie user_defined, SpaceRules rules)
      : table_(std::move(table)), user_defined_(std::move(user_defined)), rules_(rules) {}

  Result<> apply(NormalText& piece) const override {
    std::string_view rest = piece.text;
    StepBudget budget(rest.size());
    size_t steps = 0;
    if (rules_.remove_extra) skip_leading_spaces(rest, steps);
    std::string out;
    out.reserve(piece.text.size() + piece.text.size() / 2 + kSpace.size());
    const bool prefix = rules_.prefix == SpaceRules::Prefix::kEveryStretch ||
                        (rules_.prefix == SpaceRules::Prefix::kStartOfText && piece.at_start);
    if (prefix && !rest.empty()) out += kSpace;
    bool after_space = rules_.remove_extra;
    while (!rest.empty()) {
      auto [size, text] = first_of(rest, steps);
      if (!budget.spend(std::exchange(steps, 0))) return StepBudget::spent();
      if (out.size() + kSpace.size() * text.size() > piece.max_bytes)
        return grows_too_much("normalizer of the SentencePiece model", piece.max_bytes);
      while (after_space && text.starts_with(' ')) text.remove_prefix(1);
      for (const char c : text) {
        if (c == ' ') {
          out += kSpace;
        } else {
          out += c;
        }
      }
      if (!text.empty()) after_space = text.ends_with(' ');
      after_space = after_space && rules_.remove_extra;
      rest.remove_prefix(size);
    }
    while (rules_.remove_extra && out.ends_with(kSpace)) out.resize(out.size() - kSpace.size());
    piece.text = std::move(out);
    return {};
  }

 private:
  // How many bytes of the text make its next step, and what they become.
  [[nodiscard]] std::pair<size_t, std::string_view> first_of(std::string_view text, size_t& steps) const {
    size_t end = 0;
    if (user_defined_.longest_at(text, 0, end, steps) != kNoToken) return {end, text.substr(0, end)};
    if (table_) {
      if (const auto found = table_->longest(text)) return {found->size, found->replacement};
    }
    const size_t size = unicode::utf8_length(text[0]);
    return {size, text.substr(0, size)};
  }
  void skip_leading_spaces(std::string_view& text, size_t& steps) const {
    while (!text.empty()) {
      const auto [size, becomes] = first_of(text, steps);
      if (becomes != " ") return;
      text.remove_prefix(size);
    }
  }

  std::optional<Charsmap> table_;
  TokenTrie user_defined_;
  SpaceRules rules_;
};

Result<> check_supported(const File& model, const ComponentPlace& place) {
  if (model.model_type != File::ModelType::kUnigram && model.model_type != File::ModelType::kBpe)
    return place.fail("word and character models are not supported");
  if (model.treat_whitespace_as_suffix) return place.fail("white space as a suffix is not supported");
  if (!model.escape_whitespaces) return place.fail("a model that keeps spaces as they are is not supported");
  if (!model.denormalizer_charsmap.empty()) return place.fail("a denormalizer is not supported");
  if (model.pieces.size() > static_cast<size_t>(kMaxTokenId)) return place.fail("there are too many pieces");
  int64_t num_unknown = 0;
  for (const File::Piece& piece : model.pieces) {
    if (piece.text.empty()) return place.fail("a piece is empty");
    if (model.model_type == File::ModelType::kBpe && piece.text.size() > kMaxPieceBytes)
      return place.fail(fmt::format("the piece {} has more than {} bytes", quote(piece.text), kMaxPieceBytes));
    if (piece.type == PieceType::kUnused)
      return place.fail(fmt::format("unused pieces ({}) are not supported", quote(piece.text)));
    num_unknown += piece.type == PieceType::kUnknown ? 1 : 0;
  }
  if (num_unknown != 1)
    return place.fail("one piece has to be of the type UNKNOWN, there are " + std::to_string(num_unknown));
  return {};
}

Result<Vocab> vocab_of(const File& model, const ComponentPlace& place) {
  Vocab vocab;
  vocab.reserve(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const std::string& text = model.pieces[id].text;
    if (vocab.find(text) != kNoToken) return place.fail(fmt::format("the piece {} is given twice", quote(text)));
    TRY(vocab.add(text, static_cast<int64_t>(id), place.file));
  }
  return vocab;
}

// Any two pieces that make up a piece can be joined. Among all pairs in a text, the one whose piece has the highest score
// is joined first, then the leftmost.
Result<std::unique_ptr<TokenModel>> make_bpe_model(const File& model, Vocab vocab, BpeOptions options,
                                                   const ComponentPlace& place) {
  std::vector<float> scores;
  for (const File::Piece& piece : model.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  const auto is_normal = [&](std::string_view text) {
    const int32_t id = vocab.find(text);
    return id != kNoToken && model.pieces[static_cast<size_t>(id)].type == PieceType::kNormal;
  };
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<int32_t> ranks;
  for (const File::Piece& piece : model.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    const std::string_view text = piece.text;
    const auto rank = static_cast<int32_t>(
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>()) - scores.begin());
    for (size_t cut = unicode::utf8_length(text[0]); cut < text.size(); cut += unicode::utf8_length(text[cut])) {
      if (!is_normal(text.substr(0, cut)) || !is_normal(text.substr(cut))) continue;
      merges.emplace_back(text.substr(0, cut), text.substr(cut));
      ranks.push_back(rank);
    }
  }
  return TRY(BpeModel::make(std::move(vocab), merges, std::move(options), place, ranks));
}

Result<std::unique_ptr<TokenModel>> make_model_of(const File& model, const ComponentPlace& place) {
  Vocab vocab = TRY(vocab_of(model, place));
  const auto unknown = std::find_if(model.pieces.begin(), model.pieces.end(),
                                    [](const File::Piece& piece) { return piece.type == PieceType::kUnknown; });
  if (model.model_type == File::ModelType::kBpe) {
    BpeOptions options;
    options.unk_token = unknown->text;
    options.fuse_unk = true;
    options.byte_fallback = model.byte_fallback;
    return make_bpe_model(model, std::move(vocab), std::move(options), place);
  }
  UnigramOptions options;
  options.unk_id = static_cast<int32_t>(unknown - model.pieces.begin());
  options.byte_fallback = model.byte_fallback;
  options.single_precision = true;
  std::vector<double> scores;  // no number: text never becomes this piece
  for (const File::Piece& piece : model.pieces)
    scores.push_back(piece.type == PieceType::kNormal ? piece.score : std::numeric_limits<double>::quiet_NaN());
  return make_unigram_model(std::move(vocab), std::move(scores), options);
}

// num_stripped: spaces that the text may lose at its start.
Result<DecoderChain> decoder_of(int64_t num_stripped, const ComponentPlace& place) {
  Json stages = Json::array();
  stages.push_back({{"type", "Replace"}, {"pattern", {{"String", std::string(kSpace)}}}, {"content", " "}});
  stages.push_back({{"type", "ByteFallback"}});
  stages.push_back({{"type", "Fuse"}});
  if (num_stripped > 0) stages.push_back({{"type", "Strip"}, {"content", " "}, {"start", num_stripped}, {"stop", 0}});
  return DecoderChain::make({{"type", "Sequence"}, {"decoders", stages}}, place);
}

Result<> add_pieces(const File& model, const std::string& file, FolderConfig& config, TokenizerParts& parts) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const File::Piece& piece = model.pieces[id];
    AddedToken token;
    token.content = piece.text;
    token.special = piece.type == PieceType::kControl;
    token.normalized = piece.type == PieceType::kUserDefined;
    if (token.special || token.normalized) TRY(parts.added.add(std::move(token), static_cast<int64_t>(id), file));
  }
  // tokenizer_config.json lists user-defined pieces once more, with flags for another way of looking for them.
  std::erase_if(config.added_tokens, [&](const auto& entry) {
    const int32_t id = parts.model->vocab().find(entry.second.content);
    return id != kNoToken && model.pieces[static_cast<size_t>(id)].type == PieceType::kUserDefined;
  });
  const auto set_default = [&](const char* name, int64_t id) {
    if (id < 0 || static_cast<size_t>(id) >= model.pieces.size()) return;
    const File::Piece& piece = model.pieces[static_cast<size_t>(id)];
    if (piece.type == PieceType::kControl) set_default_token(config, name, piece.text);
  };
  for (const File::Piece& piece : model.pieces) {
    if (piece.type == PieceType::kUnknown) set_default_token(config, "unk_token", piece.text);
  }
  set_default("bos_token", model.bos_id);
  set_default("eos_token", model.eos_id);
  set_default("pad_token", model.pad_id);
  return {};
}

}  // namespace

Result<> load_sentencepiece(const Path& file, Env& env, FolderConfig& config, TokenizerParts& parts) {
  const std::string name = file.string();
  const ComponentPlace place{"SentencePiece model", name};
  const std::string bytes = TRY(env.read_file(file));
  const File model = TRY(parse_sentencepiece_file(bytes, name));
  TRY(check_supported(model, place));
  std::optional<Charsmap> table;
  if (!model.charsmap.empty()) table = TRY(Charsmap::parse(model.charsmap, place));
  TokenTrie user_defined;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::kUserDefined)
      user_defined.insert(model.pieces[id].text, static_cast<int32_t>(id));
  }
  SpaceRules rules;
  rules.remove_extra = model.remove_extra_whitespaces;
  const bool prefix = config.add_prefix_space.value_or(model.add_dummy_prefix);
  if (!prefix) {
    rules.prefix = SpaceRules::Prefix::kNever;
  } else if (config.legacy.value_or(false)) {
    rules.prefix = SpaceRules::Prefix::kEveryStretch;
  }
  parts.normalizer = std::make_unique<SentencePieceNormalizer>(std::move(table), std::move(user_defined), rules);
  parts.model = TRY(make_model_of(model, place));
  constexpr int64_t kAll = 1 << 20;
  parts.decoder = TRY(decoder_of(rules.remove_extra ? kAll : prefix ? 1 : 0, place));
  if (!config.add_bos_token) config.add_bos_token = true;  // as Llama's, Mistral's and Gemma's classes
  return add_pieces(model, name, config, parts);
}

}  // namespace mortise
