// See added_tokens.h.
#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

bool word_before(std::string_view text, size_t pos) {
  return pos > 0 && unicode::is_word(unicode::previous_code_point(text, pos));
}
bool word_at(std::string_view text, size_t pos) {
  return pos < text.size() && unicode::is_word(unicode::next_code_point(text, pos));
}

size_t skip_space_left(std::string_view text, size_t pos) {
  for (size_t at = pos; at > 0 && unicode::is_white_space(unicode::previous_code_point(text, at));) pos = at;
  return pos;
}

size_t skip_space_right(std::string_view text, size_t pos) {
  for (size_t at = pos; at < text.size() && unicode::is_white_space(unicode::next_code_point(text, at));) pos = at;
  return pos;
}

}  // namespace

TokenTrie::TokenTrie() : nodes_(1) {}

void TokenTrie::insert(std::string_view text, int32_t id) {
  if (text.empty()) return;
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[node].children;
    const auto it = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it != children.end() && it->first == byte) {
      node = it->second;
      continue;
    }
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    children.insert(it, {byte, fresh});
    nodes_.emplace_back();
    node = fresh;
  }
  nodes_[node].id = id;
}

int32_t TokenTrie::longest_at(std::string_view text, size_t begin, size_t& end, size_t& steps) const {
  int32_t best = kNoToken;
  uint32_t node = 0;
  for (size_t pos = begin; pos < text.size(); ++pos) {
    ++steps;
    const auto byte = static_cast<uint8_t>(text[pos]);
    const auto& children = nodes_[node].children;
    const auto it = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it == children.end() || it->first != byte) break;
    node = it->second;
    if (nodes_[node].id == kNoToken) continue;
    best = nodes_[node].id;
    end = pos + 1;
  }
  return best;
}

size_t TokenTrie::next_start(std::string_view text, size_t begin) const {
  while (begin < text.size() && !starts_[static_cast<uint8_t>(text[begin])]) ++begin;
  return begin;
}

Result<> AddedTokens::add(AddedToken token, int64_t id, std::string_view where) {
  if (token.content.empty()) return {};
  const int32_t known = vocab_.find(token.content);
  if (known != kNoToken) {
    tokens_[known] = {token, token.content};
    return {};
  }
  TRY(vocab_.add(token.content, id, where));
  tokens_[static_cast<int32_t>(id)] = {token, token.content};
  return {};
}

Result<> AddedTokens::build(const Normalizer* normalizer) {
  raw_ = TokenTrie();
  normalized_ = TokenTrie();
  for (auto& [id, entry] : tokens_) {
    const AddedToken& token = entry.token;
    if (!token.normalized) {
      raw_.insert(token.content, id);
      continue;
    }
    NormalText piece{token.content, true, growth_limit(token.content.size())};
    if (normalizer != nullptr) TRY(normalizer->apply(piece));
    normalized_.insert(piece.text, id);
    entry.shown = std::move(piece.text);
  }
  return {};
}

const std::string* AddedTokens::shown_text(int64_t id) const {
  const auto it = id < 0 || id > kMaxTokenId ? tokens_.end() : tokens_.find(static_cast<int32_t>(id));
  return it == tokens_.end() ? nullptr : &it->second.shown;
}

bool AddedTokens::is_special(std::string_view text) const {
  const int32_t id = vocab_.find(text);
  return id != kNoToken && tokens_.at(id).token.special;
}

Result<> AddedTokens::split(const TokenTrie& trie, std::string_view text, bool skip_special,
                            std::vector<AddedSpan>& out) const {
  StepBudget budget(text.size());
  size_t done = 0;  // everything before it is in `out`
  size_t pos = 0;
  while ((pos = trie.next_start(text, pos)) < text.size()) {
    size_t match_end = pos;
    size_t steps = 0;
    const int32_t id = trie.longest_at(text, pos, match_end, steps);
    if (!budget.spend(steps)) return StepBudget::spent();
    if (id == kNoToken) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    size_t end = match_end;
    pos = match_end;  // the search continues after the match itself, even if rstrip extends it
    const AddedToken& token = tokens_.at(id).token;
    if (skip_special && token.special) continue;
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token.lstrip) begin = skip_space_left(text, begin);
    if (token.rstrip) end = skip_space_right(text, end);
    if (!budget.spend(end - begin)) return StepBudget::spent();
    if (token.lstrip) begin = std::max(begin, done);
    if (done < begin) out.push_back({done, begin, kNoToken});
    if (begin < end) out.push_back({begin, end, id});  // not if the match before took all of it
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), kNoToken});
  return {};
}

}  // namespace mortise
