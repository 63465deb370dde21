// The unigram model: out of all ways to cut a piece into tokens, the one with the highest sum of scores (Kudo 2018;
// Viterbi over byte positions). A character that no token covers costs the lowest score less 10 and becomes the unknown
// token; neighbouring ones become one. Cost: O(n * longest token), nothing for a word seen before. Thread rule:
// constant after loading, except for the cache, which has its locks.
#include <fmt/core.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "foundation/base/text.h"
#include "text/tokenizer/bounds.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/word_cache.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

constexpr double kUnknownPenalty = 10.0;

class Unigram final : public TokenModel {
 public:
  Unigram(Vocab vocab, std::vector<double> scores, UnigramOptions options)
      : vocab_(std::move(vocab)),
        scores_(std::move(scores)),
        unk_id_(options.unk_id),
        byte_fallback_(options.byte_fallback),
        single_precision_(options.single_precision),
        trie_(texts_of(vocab_, scores_)) {
    double lowest = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < scores_.size(); ++id) {
      if (matches(static_cast<int32_t>(id))) lowest = std::min(lowest, scores_[id]);
    }
    unknown_score_ = sum(std::isinf(lowest) ? 0.0 : lowest, -kUnknownPenalty);
    for (unsigned byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", byte);
      byte_ids_[byte] = vocab_.find(name);
    }
  }

  Result<> tokenize(std::string_view piece, std::vector<int64_t>& out) const override {
    const bool cached = piece.size() <= WordCache::kMaxWordBytes;
    if (cached && cache_.get(piece, out)) return {};
    const size_t first = out.size();
    TRY(tokenize_anew(piece, out));
    if (cached) cache_.put(piece, {out.begin() + static_cast<std::ptrdiff_t>(first), out.end()});
    return {};
  }
  [[nodiscard]] const Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(scores_.size()); }

 private:
  struct Step {
    double score = 0;
    size_t begin = std::string_view::npos;  // npos: not reached
    int32_t id = kNoToken;
  };

  // The tokens that text may become. If two tokens have the same text, the later one.
  static std::vector<std::pair<std::string_view, int32_t>> texts_of(const Vocab& vocab,
                                                                    const std::vector<double>& scores) {
    std::vector<std::pair<std::string_view, int32_t>> out;
    for (size_t id = 0; id < scores.size(); ++id) {
      const std::string_view* text = vocab.text(static_cast<int64_t>(id));
      if (text == nullptr || text->empty() || std::isnan(scores[id])) continue;
      if (vocab.find(*text) == static_cast<int32_t>(id)) out.emplace_back(*text, static_cast<int32_t>(id));
    }
    return out;
  }

  Result<> tokenize_anew(std::string_view piece, std::vector<int64_t>& out) const {
    const std::vector<Step> steps = TRY(search(piece));
    std::vector<size_t> ends;  // ends of the chosen parts, last first
    for (size_t end = piece.size(); end > 0; end = steps[end].begin) ends.push_back(end);
    size_t begin = 0;
    size_t unknown_begin = 0;
    bool unknown = false;
    for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
      if (steps[*end].id == unk_id_) {
        if (!unknown) unknown_begin = begin;
        unknown = true;
      } else {
        if (unknown) TRY(add(piece.substr(unknown_begin, begin - unknown_begin), out));
        unknown = false;
        const int32_t id = steps[*end].id;
        if (id != kNoToken) {
          out.push_back(id);
        } else {
          TRY(add(piece.substr(begin, *end - begin), out));
        }
      }
      begin = *end;
    }
    if (unknown) TRY(add(piece.substr(unknown_begin), out));
    return {};
  }

  [[nodiscard]] bool matches(int32_t id) const { return !std::isnan(scores_[static_cast<size_t>(id)]); }
  [[nodiscard]] double sum(double a, double b) const {
    return single_precision_ ? static_cast<double>(static_cast<float>(a + b)) : a + b;
  }

  // The best part that ends at each byte.
  [[nodiscard]] Result<std::vector<Step>> search(std::string_view piece) const {
    StepBudget budget(piece.size());
    std::vector<Step> best(piece.size() + 1);
    best[0].begin = 0;
    const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
      Step& step = best[end];
      if (step.begin == std::string_view::npos || score > step.score) step = {score, begin, id};
    };
    for (size_t begin = 0; begin < piece.size();) {
      const size_t char_end = begin + unicode::utf8_length(piece[begin]);
      const double so_far = best[begin].score;
      bool covered = false;
      const size_t num_steps = trie_.walk(piece, begin, [&](size_t end, int32_t id) {
        offer(begin, end, sum(so_far, scores_[static_cast<size_t>(id)]), id);
        covered = covered || end == char_end;
      });
      if (!budget.spend(num_steps)) return StepBudget::spent();
      if (!covered && unk_id_ != kNoToken) offer(begin, char_end, sum(so_far, unknown_score_), unk_id_);
      if (best[char_end].begin == std::string_view::npos) offer(begin, char_end, sum(so_far, unknown_score_), kNoToken);
      begin = char_end;
    }
    return best;
  }

  Result<> add(std::string_view text, std::vector<int64_t>& out) const {
    const int32_t id = vocab_.find(text);
    if (id != kNoToken && matches(id)) return out.push_back(id), Result<>();
    const auto known = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] != kNoToken; };
    if (byte_fallback_ && std::all_of(text.begin(), text.end(), known)) {
      for (const char c : text) out.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      return {};
    }
    if (unk_id_ == kNoToken)
      return Error{ErrorKind::kData, fmt::format("no token covers {} and there is no unknown token", quote(text)), "",
                   ""};
    out.push_back(unk_id_);
    return {};
  }

  Vocab vocab_;
  std::vector<double> scores_;  // by id
  int32_t unk_id_;
  bool byte_fallback_;
  bool single_precision_;
  PieceTrie trie_;
  double unknown_score_ = 0;
  int32_t byte_ids_[256];
  mutable WordCache cache_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_unigram(const Json& spec, const ComponentPlace& place) {
  Vocab vocab;
  std::vector<double> scores;
  for (const Json& entry : *TRY(component_list(spec, "vocab", place))) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return place.fail(fmt::format("entry {} of 'vocab' has to be [text, score]", scores.size()));
    }
    TRY(vocab.add(entry[0].get_ref<const std::string&>(), static_cast<int64_t>(scores.size()), place.file));
    scores.push_back(entry[1].get<double>());
  }
  const int64_t unk_id = TRY(component_int(spec, "unk_id", kNoToken, place));
  if (unk_id != kNoToken && (unk_id < 0 || static_cast<size_t>(unk_id) >= scores.size()))
    return place.fail("'unk_id' is not in the vocabulary");
  UnigramOptions options;
  options.unk_id = static_cast<int32_t>(unk_id);
  options.byte_fallback = TRY(component_bool(spec, "byte_fallback", false, place));
  return make_unigram_model(std::move(vocab), std::move(scores), options);
}

std::unique_ptr<TokenModel> make_unigram_model(Vocab vocab, std::vector<double> scores, UnigramOptions options) {
  return std::make_unique<Unigram>(std::move(vocab), std::move(scores), options);
}

}  // namespace mortise
