// See bpe.h.
#include "text/tokenizer/bpe.h"

#include <fmt/core.h>
#include <algorithm>
#include <cstdio>
#include <queue>

#include "foundation/base/text.h"
#include "text/tokenizer/bounds.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

using TextPair = std::pair<std::string, std::string>;

// A merge that may be applied: lowest rank first, then leftmost.
struct Candidate {
  int32_t rank;
  int32_t pos;
  int32_t id;  // the merged token; identifies an outdated candidate
  bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : pos > other.pos; }
};

// "a b" (files before 2024), or ["a", "b"].
Result<TextPair> read_merge(const Json& entry, size_t index, const ComponentPlace& place) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return TextPair(entry[0].get<std::string>(), entry[1].get<std::string>());
  }
  if (entry.is_string()) {
    const std::string& text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return TextPair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return place.fail(fmt::format("merge number {} is not a pair of tokens", index));
}

}  // namespace

struct BpeModel::Symbol {
  int32_t id;
  int32_t prev;
  int32_t next;  // -1: the last
  bool alive;
};

Result<std::unique_ptr<BpeModel>> BpeModel::make(Vocab vocab, const std::vector<TextPair>& merges, BpeOptions options,
                                                 const ComponentPlace& place, std::span<const int32_t> ranks) {
  std::unique_ptr<BpeModel> model(new BpeModel(std::move(vocab), std::move(options)));
  TRY(model->add_merges(merges, ranks, place));
  const std::string& unk = model->options_.unk_token;
  if (!unk.empty()) {
    model->unk_id_ = model->vocab_.find(unk);
    if (model->unk_id_ == kNoToken)
      return place.fail(fmt::format("the unknown token {} is not in the vocabulary", quote(unk)));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    model->fallback_ids_[byte] = model->vocab_.find(name);
  }
  return model;
}

Result<> BpeModel::add_merges(const std::vector<TextPair>& merges, std::span<const int32_t> ranks,
                              const ComponentPlace& place) {
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    const std::string_view tail =
        std::string_view(right).substr(std::min(options_.continuing_subword_prefix.size(), right.size()));
    const int32_t left_id = vocab_.find(left);
    const int32_t right_id = vocab_.find(right);
    const int32_t merged = vocab_.find(left + std::string(tail));
    for (const auto& [id, text] :
         {std::pair(left_id, left), std::pair(right_id, right), std::pair(merged, left + std::string(tail))}) {
      if (id == kNoToken)
        return place.fail(fmt::format("merge number {} needs {}, which is not in the vocabulary", i, quote(text)));
    }
    merges_.put(left_id, right_id, {ranks.empty() ? static_cast<int32_t>(i) : ranks[i], merged});
  }
  return {};
}

bool BpeModel::take_bytes() {
  if (!options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty() || options_.byte_fallback)
    return false;
  const auto& alphabet = byte_level_alphabet();
  for (size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = vocab_.find(alphabet[byte]);
  if (options_.ignore_merges) {
    bool added = true;
    vocab_.for_each([&](std::string_view text, int32_t id) {
      const auto bytes = byte_level_bytes(text);
      if (bytes && !byte_vocab_.add(*bytes, id, "").ok()) added = false;
    });
    if (!added) return false;
  }
  bytes_ = true;
  return true;
}

std::string_view BpeModel::symbol_text(std::string_view piece, size_t begin, size_t end, std::string& made) const {
  const std::string_view text = piece.substr(begin, end - begin);
  const bool add_prefix = begin > 0 && !options_.continuing_subword_prefix.empty();
  const bool add_suffix = end == piece.size() && !options_.end_of_word_suffix.empty();
  if (!add_prefix && !add_suffix) return text;
  made = (add_prefix ? options_.continuing_subword_prefix : "") + std::string(text) +
         (add_suffix ? options_.end_of_word_suffix : "");
  return made;
}

bool BpeModel::add_fallback_bytes(std::string_view text, std::vector<int32_t>& ids) const {
  const bool known = std::all_of(text.begin(), text.end(),
                                 [this](char c) { return fallback_ids_[static_cast<uint8_t>(c)] != kNoToken; });
  if (!known) return false;
  for (const char c : text) ids.push_back(fallback_ids_[static_cast<uint8_t>(c)]);
  return true;
}

void BpeModel::first_symbols(std::string_view piece, std::vector<int32_t>& ids) const {
  bool unknown = false;  // an unknown token is held back: with fuse_unk it absorbs the next ones
  std::string made;
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = bytes_ ? begin + 1 : begin + unicode::utf8_length(piece[begin]);
    const std::string_view text = symbol_text(piece, begin, end, made);
    const int32_t id = bytes_ ? byte_ids_[static_cast<uint8_t>(piece[begin])] : vocab_.find(text);
    begin = end;
    if (id != kNoToken) {
      if (unknown) ids.push_back(unk_id_);
      unknown = false;
      ids.push_back(id);
      continue;
    }
    if (options_.byte_fallback && add_fallback_bytes(text, ids)) continue;
    if (unk_id_ == kNoToken) continue;  // without an unknown token the character is dropped
    if (unknown && !options_.fuse_unk) ids.push_back(unk_id_);
    unknown = true;
  }
  if (unknown) ids.push_back(unk_id_);
}

void BpeModel::merge(std::vector<int32_t>& ids) const {
  static thread_local std::vector<Symbol> symbols;
  static thread_local std::vector<Candidate> heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, true});
  const auto at = [](int32_t pos) -> Symbol& { return symbols[static_cast<size_t>(pos)]; };
  const auto consider = [&](int32_t pos) {
    if (pos < 0 || at(pos).next < 0) return;
    const PairMerge* found = merges_.find(at(pos).id, at(at(pos).next).id);
    if (found == nullptr) return;
    heap.push_back({found->rank, pos, found->id});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t pos = 0; pos + 1 < count; ++pos) consider(pos);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = at(top.pos);
    if (!left.alive || left.next < 0) continue;
    Symbol& right = at(left.next);
    const PairMerge* found = merges_.find(left.id, right.id);
    if (found == nullptr || found->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) at(left.next).prev = top.pos;
    consider(left.prev);
    consider(top.pos);
  }
  ids.clear();
  for (int32_t pos = count > 0 ? 0 : -1; pos >= 0; pos = at(pos).next) ids.push_back(at(pos).id);
}

Result<> BpeModel::tokenize(std::string_view piece, std::vector<int64_t>& out) const {
  if (options_.ignore_merges) {
    const int32_t id = bytes_ ? byte_vocab_.find(piece) : vocab_.find(piece);
    if (id != kNoToken) {
      out.push_back(id);
      return {};
    }
  }
  const bool cached = piece.size() <= WordCache::kMaxWordBytes;
  if (cached && cache_.get(piece, out)) return {};
  static thread_local std::vector<int32_t> ids;
  ids.clear();
  first_symbols(piece, ids);
  if (ids.size() > 1) merge(ids);
  if (cached) cache_.put(piece, ids);
  out.insert(out.end(), ids.begin(), ids.end());
  return {};
}

Result<std::unique_ptr<TokenModel>> make_bpe(const Json& spec, const ComponentPlace& place) {
  BpeOptions options;
  const auto text_or_empty = [&](std::string_view key) -> Result<std::string> {
    const Json* value = json_find(spec, key);
    if (value == nullptr || value->is_null()) return std::string();
    return component_string(spec, key, place);
  };
  options.unk_token = TRY(text_or_empty("unk_token"));
  options.continuing_subword_prefix = TRY(text_or_empty("continuing_subword_prefix"));
  options.end_of_word_suffix = TRY(text_or_empty("end_of_word_suffix"));
  if (options.continuing_subword_prefix.size() > kMaxAffixBytes || options.end_of_word_suffix.size() > kMaxAffixBytes)
    return place.fail(fmt::format("the prefix or suffix of subwords has more than {} bytes", kMaxAffixBytes));
  options.fuse_unk = TRY(component_bool(spec, "fuse_unk", false, place));
  options.byte_fallback = TRY(component_bool(spec, "byte_fallback", false, place));
  options.ignore_merges = TRY(component_bool(spec, "ignore_merges", false, place));
  if (const Json* dropout = json_find(spec, "dropout");
      dropout != nullptr && dropout->is_number() && dropout->get<double>() > 0) {
    return place.fail("dropout is not supported: it makes the tokens random");
  }
  Vocab vocab = TRY(read_vocab(spec, place));
  std::vector<TextPair> merges;
  for (const Json& entry : *TRY(component_list(spec, "merges", place))) {
    merges.push_back(TRY(read_merge(entry, merges.size(), place)));
  }
  return TRY(BpeModel::make(std::move(vocab), merges, std::move(options), place));
}

}  // namespace mortise
