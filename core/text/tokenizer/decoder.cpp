// See decoder.h. Every chunk that a stage hands on holds whole characters.
#include "text/tokenizer/decoder.h"

#include <fmt/core.h>
#include <algorithm>

#include "foundation/base/text.h"
#include "text/tokenizer/bounds.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

std::string with_replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

// A stage that needs its tokens in one piece.
class WholeTokenStage : public DecodeStage {
 public:
  void push(std::string_view chunk, bool ends) final {
    token_.append(chunk);
    if (!ends) return;
    token(token_);
    token_.clear();
  }
  void finish() override { finish_next(); }

 protected:
  virtual void token(std::string& text) = 0;

 private:
  std::string token_;
};

class JoinWithSpaces final : public DecodeStage {
 public:
  void push(std::string_view chunk, bool ends) override {
    if (begins_ && !first_) emit(" ", false);
    emit(chunk, ends);
    first_ = false;
    begins_ = ends;
  }
  void finish() override { finish_next(); }

 private:
  bool first_ = true;
  bool begins_ = true;
};

// All tokens become one.
class Fuse final : public DecodeStage {
 public:
  void push(std::string_view chunk, bool /*ends*/) override { emit(chunk, false); }
  void finish() override {
    emit("", true);
    finish_next();
  }
};

// Alphabet characters to bytes. A token with any other character is used as it is. Bytes join across tokens.
class ByteLevelDecode final : public WholeTokenStage {
 public:
  void finish() override {
    std::string out;
    repair_.finish(out);
    emit(out, true);
    finish_next();
  }

 protected:
  void token(std::string& text) override {
    std::string out;
    const auto bytes = byte_level_bytes(text);
    repair_.push(bytes ? *bytes : text, out);
    if (!out.empty()) emit(out, false);
  }

 private:
  unicode::Utf8Repair repair_;
};

std::optional<char> byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

class ByteFallback final : public WholeTokenStage {
 public:
  explicit ByteFallback(DecodeMode mode) : mode_(mode) {}
  void finish() override {
    flush();
    finish_next();
  }

 protected:
  void token(std::string& text) override {
    const auto byte = byte_token(text);
    if (!byte) {
      flush();
      emit(text, true);
      return;
    }
    run_.push_back(*byte);
    if (mode_ == DecodeMode::kWhole || broken_) return;
    std::string out;
    repair_.push(std::string_view(&*byte, 1), out);
    if (out.empty()) return;
    if (repair_.pending() || out != run_) {
      broken_ = true;
      return;
    }
    emit(out, false);
    run_.clear();
    open_ = true;
  }

 private:
  void flush() {
    if (open_) emit("", true);
    if (!run_.empty() && !find_invalid_utf8(run_)) {
      emit(run_, true);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) emit(unicode::kReplacement, true);
    }
    run_.clear();
    repair_ = {};
    broken_ = open_ = false;
  }

  DecodeMode mode_;
  std::string run_;             // bytes not yet shown
  unicode::Utf8Repair repair_;  // kStream: the current character
  bool broken_ = false;         // kStream: the run cannot become valid
  bool open_ = false;           // kStream: part of the run has been handed on
};

// At most `start` and `stop` copies of a character off the ends of each token.
class StripDecode final : public DecodeStage {
 public:
  StripDecode(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void push(std::string_view chunk, bool ends) override {
    while (left_ < start_ && !chunk.empty()) {
      if (!chunk.starts_with(content_)) {
        left_ = start_;
        break;
      }
      chunk.remove_prefix(content_.size());
      ++left_;
    }
    size_t num_copies = 0;  // copies of the character at the chunk's end
    while (num_copies < stop_ && chunk.ends_with(content_)) {
      chunk.remove_suffix(content_.size());
      ++num_copies;
    }
    std::string out;
    if (chunk.empty()) {  // the held text may still be the token's end
      num_copies += held_;
      for (; num_copies > stop_; --num_copies) out += content_;
    } else {
      for (size_t i = 0; i < held_; ++i) out += content_;
      out += chunk;
    }
    held_ = ends ? 0 : num_copies;
    if (ends) left_ = 0;
    emit(out, ends);
  }
  void finish() override { finish_next(); }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t left_ = 0;  // characters of the token's start looked at
  size_t held_ = 0;  // copies of the character that may be its end
};

// A single character is replaced chunk by chunk; a longer pattern needs the whole token.
class ReplaceDecode final : public DecodeStage {
 public:
  ReplaceDecode(Regex pattern, std::string content, bool single)
      : pattern_(std::move(pattern)), content_(std::move(content)), single_(single) {}
  void push(std::string_view chunk, bool ends) override {
    held_.append(chunk);
    if (!ends && !single_) return;
    std::vector<TextSpan> spans;
    std::string out;
    size_t done = 0;
    if (pattern_.find_all(held_, spans).ok()) {
      for (const TextSpan& span : spans) {
        out.append(held_, done, span.begin - done);
        out += content_;
        done = span.end;
      }
    }
    out.append(held_, done);
    held_.clear();
    emit(out, ends);
  }
  void finish() override { finish_next(); }

 private:
  Regex pattern_;
  std::string content_;
  bool single_;
  std::string held_;
};

class MetaspaceDecode final : public DecodeStage {
 public:
  MetaspaceDecode(std::string replacement, bool drop_first) : replacement_(std::move(replacement)), drop_(drop_first) {}
  void push(std::string_view chunk, bool ends) override {
    std::string out;
    while (!chunk.empty()) {
      if (chunk.starts_with(replacement_)) {
        if (!drop_) out.push_back(' ');
        chunk.remove_prefix(replacement_.size());
      } else {
        const size_t size = unicode::utf8_length(chunk[0]);
        out.append(chunk.substr(0, size));
        chunk.remove_prefix(size);
      }
    }
    if (ends) drop_ = false;
    emit(out, ends);
  }
  void finish() override { finish_next(); }

 private:
  std::string replacement_;
  bool drop_;  // in the first token they vanish
};

class WordPieceDecode final : public WholeTokenStage {
 public:
  WordPieceDecode(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}

 protected:
  void token(std::string& text) override {
    if (!first_) text = text.starts_with(prefix_) ? text.substr(prefix_.size()) : " " + text;
    first_ = false;
    if (cleanup_) clean_up(text);
    emit(text, true);
  }

 private:
  static void clean_up(std::string& text) {
    static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) text = with_replaced(text, from, to);
  }
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

// The suffix that ends a word is a space, but nothing behind the last token.
class SuffixDecode final : public WholeTokenStage {
 public:
  explicit SuffixDecode(std::string suffix) : suffix_(std::move(suffix)) {}
  void finish() override {
    if (held_) emit(replaced(*held_, ""), true);
    finish_next();
  }

 protected:
  void token(std::string& text) override {
    if (held_) emit(replaced(*held_, " "), true);
    held_ = text;
  }

 private:
  [[nodiscard]] std::string replaced(std::string_view text, std::string_view with) const {
    return suffix_.empty() ? std::string(text) : with_replaced(text, suffix_, with);
  }
  std::string suffix_;
  std::optional<std::string> held_;
};

}  // namespace

DecodeRun::DecodeRun(std::vector<std::unique_ptr<DecodeStage>> stages)
    : stages_(std::move(stages)), text_(std::make_unique<std::string>()) {
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (i + 1 < stages_.size()) stages_[i]->next = stages_[i + 1].get();
    stages_[i]->sink = text_.get();
  }
}

std::string DecodeRun::push(std::string_view token) {
  if (stages_.empty()) return std::string(token);
  stages_.front()->push(token, true);
  return std::exchange(*text_, {});
}

std::string DecodeRun::finish() {
  if (!stages_.empty()) stages_.front()->finish();
  return std::exchange(*text_, {});
}

Result<std::string> DecoderChain::bytes_of(std::string token) const {
  if (!dependent_.empty()) {
    return Error{ErrorKind::kConfig,
                 fmt::format("the text of a token depends on other tokens (decoder {})", dependent_), "", ""};
  }
  for (const auto& stage : bytes_stages_) stage(token);
  return token;
}

DecodeRun DecoderChain::start(DecodeMode mode) const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  stages.reserve(makers_.size());
  for (const Maker& make : makers_) stages.push_back(make(mode));
  return DecodeRun(std::move(stages));
}

Result<DecoderChain> DecoderChain::make(const Json& spec, const ComponentPlace& place) {
  DecoderChain chain;
  TRY(check_num_stages(spec, "decoders", place));
  if (spec.is_null()) {
    chain.makers_.push_back([](DecodeMode) { return std::make_unique<JoinWithSpaces>(); });
    chain.depend_on_others("the default, which puts spaces between tokens");
  } else {
    TRY(chain.add(spec, place));
  }
  return chain;
}

// Decoding cannot fail, so a chain that makes a text much longer is refused where it is loaded.
Result<> DecoderChain::grow(size_t made_bytes, size_t matched_bytes, const ComponentPlace& place) {
  const size_t most = matched_bytes == 0 ? 1 + made_bytes : (made_bytes + matched_bytes - 1) / matched_bytes;
  growth_ *= std::max<size_t>(most, 1);
  if (growth_ <= kMaxGrowth) return {};
  return place.fail(fmt::format("the Replace stages may make a text more than {} times as long", kMaxGrowth));
}

Result<> DecoderChain::add(const Json& spec, const ComponentPlace& place) {
  const std::string type = TRY(component_type(spec, place));
  if (type == "Sequence") {
    for (const Json& part : *TRY(component_list(spec, "decoders", place))) TRY(add(part, place));
  } else if (type == "ByteLevel") {
    makers_.push_back([](DecodeMode) { return std::make_unique<ByteLevelDecode>(); });
    is_fused_ = true;
    add_bytes_stage([](std::string& token) {
      if (auto bytes = byte_level_bytes(token)) token = *std::move(bytes);
    });
  } else if (type == "ByteFallback") {
    makers_.push_back([](DecodeMode mode) { return std::make_unique<ByteFallback>(mode); });
    add_bytes_stage([](std::string& token) {
      if (const auto byte = byte_token(token)) token.assign(1, *byte);
    });
  } else if (type == "Fuse") {
    makers_.push_back([](DecodeMode) { return std::make_unique<Fuse>(); });
    is_fused_ = true;
  } else if (type == "Strip") {
    const std::string content = TRY(component_string(spec, "content", place));
    const int64_t start = TRY(component_int(spec, "start", 0, place));
    const int64_t stop = TRY(component_int(spec, "stop", 0, place));
    if (unicode::count_code_points(content) != 1 || start < 0 || stop < 0)
      return place.fail("Strip needs one character and counts");
    if (stop > 0 || (start > 0 && !is_fused_)) depend_on_others(type);
    makers_.push_back([=](DecodeMode) {
      return std::make_unique<StripDecode>(content, static_cast<size_t>(start), static_cast<size_t>(stop));
    });
  } else if (type == "Replace") {
    const Regex pattern = TRY(component_pattern(spec, place));
    const Json* literal = json_find(*json_find(spec, "pattern"), "String");
    if (literal != nullptr && !literal->is_string()) literal = nullptr;
    const bool single = literal != nullptr && unicode::count_code_points(literal->get<std::string>()) == 1;
    const std::string content = TRY(component_string(spec, "content", place));
    const size_t matched_bytes = literal != nullptr ? literal->get_ref<const std::string&>().size() : 0;
    TRY(grow(content.size(), matched_bytes, place));  // a regular expression may match nothing at every place
    makers_.push_back([=](DecodeMode) { return std::make_unique<ReplaceDecode>(pattern, content, single); });
    const bool is_alone = literal != nullptr && (single || !is_fused_);
    if (!is_alone) {
      depend_on_others(type);
      return {};
    }
    add_bytes_stage([from = literal->get<std::string>(), content](std::string& token) {
      token = with_replaced(token, from, content);
    });
  } else if (type == "Metaspace") {
    const std::string replacement = TRY(component_string(spec, "replacement", place));
    if (replacement.empty()) return place.fail("'replacement' has to be one character");
    const bool add_prefix = TRY(component_bool(spec, "add_prefix_space", true, place));
    std::string scheme = add_prefix ? "always" : "never";
    if (json_find(spec, "prepend_scheme") != nullptr) scheme = TRY(component_string(spec, "prepend_scheme", place));
    makers_.push_back([=](DecodeMode) { return std::make_unique<MetaspaceDecode>(replacement, scheme != "never"); });
    add_bytes_stage([replacement](std::string& token) { token = with_replaced(token, replacement, " "); });
  } else if (type == "WordPiece") {
    const std::string prefix = TRY(component_string(spec, "prefix", place));
    const bool cleanup = TRY(component_bool(spec, "cleanup", true, place));
    makers_.push_back([=](DecodeMode) { return std::make_unique<WordPieceDecode>(prefix, cleanup); });
    depend_on_others(type);
  } else if (type == "BPEDecoder") {
    const std::string suffix = TRY(component_string(spec, "suffix", place));
    if (suffix.size() > kMaxAffixBytes) return place.fail("'suffix' is too long");
    makers_.push_back([=](DecodeMode) { return std::make_unique<SuffixDecode>(suffix); });
    depend_on_others(type);
  } else {
    return place.unsupported(type);
  }
  return {};
}

}  // namespace mortise
