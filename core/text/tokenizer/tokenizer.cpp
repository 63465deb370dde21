// See tokenizer.h.
#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "foundation/base/text.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace mortise {
namespace {

// A normalised stretch without raw added tokens. `bytes_left`: how much longer the whole text may become.
Result<> encode_normal(const TokenizerParts& parts, std::string_view text, bool at_start, size_t& bytes_left,
                       std::vector<int64_t>& out) {
  std::vector<AddedSpan> spans;
  TRY(parts.added.split_normalized(text, parts.split_special_tokens, spans));
  PieceList list;
  list.max_bytes = bytes_left;
  for (const AddedSpan& span : spans) {
    if (span.id != kNoToken) {
      out.push_back(span.id);
      continue;
    }
    list.pieces.assign(1, {text.substr(span.begin, span.end - span.begin), at_start && span.begin == 0});
    if (parts.pre_tokenizer != nullptr) TRY(parts.pre_tokenizer->apply(list));
    for (const Piece& piece : list.pieces) {
      if (!piece.text.empty()) TRY(parts.model->tokenize(piece.text, out));
    }
  }
  bytes_left -= list.stored_bytes;
  return {};
}

Result<std::vector<int64_t>> encode_text(const TokenizerParts& parts, std::string_view text, bool add_special_tokens) {
  if (const auto bad = find_invalid_utf8(text)) {
    return Error{ErrorKind::kData, "the text is not UTF-8 at byte " + std::to_string(*bad), "", ""};
  }
  std::vector<int64_t> ids;
  if (add_special_tokens) ids = parts.post_processor.before;
  size_t bytes_left = growth_limit(text.size());
  std::vector<AddedSpan> spans;
  TRY(parts.added.split_raw(text, parts.split_special_tokens, spans));
  for (const AddedSpan& span : spans) {
    if (span.id != kNoToken) {
      ids.push_back(span.id);
      continue;
    }
    const std::string_view raw = text.substr(span.begin, span.end - span.begin);
    if (parts.normalizer == nullptr) {
      TRY(encode_normal(parts, raw, span.begin == 0, bytes_left, ids));
    } else {
      NormalText piece{std::string(raw), span.begin == 0, bytes_left};
      TRY(parts.normalizer->apply(piece));
      bytes_left -= std::min(bytes_left, piece.text.size());
      TRY(encode_normal(parts, piece.text, piece.at_start, bytes_left, ids));
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), parts.post_processor.after.begin(), parts.post_processor.after.end());
  return ids;
}

}  // namespace

Result<std::vector<int64_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  auto ids = encode_text(*parts_, text, add_special_tokens);
  if (!ids.ok() && ids.error().where.empty()) {
    Error error = std::move(ids).error();
    error.where = parts_->folder.string();
    return error;
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  DecodeRun run = parts_->decoder.start(DecodeMode::kWhole);
  std::string text;
  for (const int64_t id : ids) {
    const auto token = parts_->token_text(id);
    if (!token || (skip_special_tokens && parts_->added.is_special(*token))) continue;
    text += run.push(*token);
  }
  return text += run.finish();
}

struct IncrementalDecoder::State {
  std::shared_ptr<const TokenizerParts> parts;
  bool skip_special_tokens;
  DecodeRun run;
};

IncrementalDecoder::IncrementalDecoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder& IncrementalDecoder::operator=(IncrementalDecoder&&) noexcept = default;
IncrementalDecoder::~IncrementalDecoder() = default;

std::string IncrementalDecoder::push(int64_t id) {
  const TokenizerParts& parts = *state_->parts;
  const auto token = parts.token_text(id);
  if (!token || (state_->skip_special_tokens && parts.added.is_special(*token))) return {};
  return state_->run.push(*token);
}

std::string IncrementalDecoder::finish() { return state_->run.finish(); }

IncrementalDecoder Tokenizer::incremental_decoder(bool skip_special_tokens) const {
  return IncrementalDecoder(std::make_unique<IncrementalDecoder::State>(
      IncrementalDecoder::State{parts_, skip_special_tokens, parts_->decoder.start(DecodeMode::kStream)}));
}

int64_t Tokenizer::vocab_size() const { return std::max(parts_->model->vocab().id_limit(), parts_->added.id_limit()); }

std::optional<int64_t> Tokenizer::token_id(std::string_view token) const {
  const int32_t id = parts_->token_id(token);
  return id == kNoToken ? std::nullopt : std::optional<int64_t>(id);
}

std::optional<std::string> Tokenizer::token_text(int64_t id) const {
  const auto text = parts_->token_text(id);
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

Result<std::string> Tokenizer::token_bytes(int64_t id) const {
  const auto text = parts_->token_text(id);
  if (!text) return std::string();
  return parts_->decoder.bytes_of(std::string(*text));
}

bool Tokenizer::is_special(int64_t id) const {
  const auto text = parts_->token_text(id);
  return text && parts_->added.is_special(*text);
}

namespace {

std::optional<int64_t> named_id(const Tokenizer& tokenizer, const char* name) {
  const auto it = tokenizer.special_tokens().find(name);
  return it == tokenizer.special_tokens().end() ? std::nullopt : tokenizer.token_id(it->second);
}

}  // namespace

std::optional<int64_t> Tokenizer::bos_id() const { return named_id(*this, "bos_token"); }
std::optional<int64_t> Tokenizer::eos_id() const { return named_id(*this, "eos_token"); }
std::optional<int64_t> Tokenizer::pad_id() const { return named_id(*this, "pad_token"); }
const std::map<std::string, std::string>& Tokenizer::special_tokens() const { return parts_->special_tokens; }
const std::map<std::string, TemplateSource>& Tokenizer::chat_templates() const { return parts_->chat_templates; }
const Path& Tokenizer::folder() const { return parts_->folder; }

const TemplateSource* Tokenizer::chat_template(bool with_tools) const {
  const auto& templates = parts_->chat_templates;
  if (with_tools && templates.contains("tool_use")) return &templates.at("tool_use");
  const auto it = templates.find("default");
  return it == templates.end() ? nullptr : &it->second;
}

}  // namespace mortise
