// See pre_tokenizer.h.
#include "text/tokenizer/pre_tokenizer.h"

#include <functional>

#include "foundation/base/text.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/split.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

using MadePreTokenizer = Result<std::unique_ptr<PreTokenizer>>;
using CharTest = bool (*)(char32_t);

// Replaces every piece by its parts. find(text, spans) gives the matches.
template <class Find>
Result<> split_pieces(PieceList& list, SplitBehavior behavior, bool invert, Find find) {
  std::vector<Piece> out;
  out.reserve(list.pieces.size() * 2);
  std::vector<TextSpan> matches;
  std::vector<TextSpan> parts;
  for (const Piece& piece : list.pieces) {
    matches.clear();
    parts.clear();
    TRY(find(piece.text, matches));
    split_around(matches, piece.text.size(), behavior, invert, parts);
    for (const TextSpan& part : parts) {
      out.push_back({piece.text.substr(part.begin, part.end - part.begin), piece.at_start && part.begin == 0});
    }
  }
  list.pieces = std::move(out);
  return {};
}

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  Result<> apply(PieceList& list) const override {
    return split_pieces(list, behavior_, invert_, [this](std::string_view text, std::vector<TextSpan>& out) {
      return pattern_.find_all(text, out);
    });
  }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// Every character that passes a test is its own match.
class CharSplit final : public PreTokenizer {
 public:
  CharSplit(std::function<bool(char32_t)> test, SplitBehavior behavior) : test_(std::move(test)), behavior_(behavior) {}
  Result<> apply(PieceList& list) const override {
    return split_pieces(list, behavior_, false, [this](std::string_view text, std::vector<TextSpan>& out) -> Result<> {
      for (size_t pos = 0; pos < text.size();) {
        const size_t begin = pos;
        if (test_(unicode::next_code_point(text, pos))) out.push_back({begin, pos});
      }
      return {};
    });
  }

 private:
  std::function<bool(char32_t)> test_;
  SplitBehavior behavior_;
};

// Words (\w+), and runs of characters that are neither word nor space.
class WordSplit final : public PreTokenizer {
 public:
  Result<> apply(PieceList& list) const override {
    return split_pieces(
        list, SplitBehavior::kRemoved, true, [](std::string_view text, std::vector<TextSpan>& out) -> Result<> {
          enum Class { kNone, kSpace, kWord, kOther };
          Class open = kNone;
          for (size_t pos = 0; pos < text.size();) {
            const size_t begin = pos;
            const char32_t code = unicode::next_code_point(text, pos);
            const Class now = unicode::is_word(code) ? kWord : unicode::is_white_space(code) ? kSpace : kOther;
            if (now != kSpace) {
              if (now == open) {
                out.back().end = pos;
              } else {
                out.push_back({begin, pos});
              }
            }
            open = now;
          }
          return {};
        });
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  Result<> apply(PieceList& list) const override {
    return split_pieces(list, SplitBehavior::kIsolated, false,
                        [this](std::string_view text, std::vector<TextSpan>& out) -> Result<> {
                          for (size_t begin = 0; begin < text.size();) {
                            const size_t end = begin + unicode::byte_offset_of(text.substr(begin), length_);
                            out.push_back({begin, end});
                            begin = end;
                          }
                          return {};
                        });
  }

 private:
  size_t length_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Regex> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  Result<> apply(PieceList& list) const override {
    if (add_prefix_space_) {
      for (Piece& piece : list.pieces) {
        if (!piece.text.starts_with(' ')) piece.text = TRY(list.keep(" " + std::string(piece.text)));
      }
    }
    if (pattern_) {
      TRY(split_pieces(
          list, SplitBehavior::kIsolated, false,
          [this](std::string_view text, std::vector<TextSpan>& out) { return pattern_->find_all(text, out); }));
    }
    if (map_bytes_) {
      for (Piece& piece : list.pieces) piece.text = TRY(list.keep(byte_level_text(piece.text)));
    }
    return {};
  }
  [[nodiscard]] bool ends_in_byte_level() const override { return true; }
  void leave_out_byte_level() override { map_bytes_ = false; }

 private:
  bool add_prefix_space_;
  std::optional<Regex> pattern_;
  bool map_bytes_ = true;
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Scheme { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Scheme scheme, std::optional<Regex> splitter)
      : replacement_(std::move(replacement)), scheme_(scheme), splitter_(std::move(splitter)) {}

  Result<> apply(PieceList& list) const override {
    for (Piece& piece : list.pieces) {
      std::string text;
      for (const char c : piece.text) {
        if (c == ' ') {
          text += replacement_;
        } else {
          text.push_back(c);
        }
      }
      const bool wanted = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && piece.at_start);
      if (wanted && !text.starts_with(replacement_)) text.insert(0, replacement_);
      piece.text = TRY(list.keep(std::move(text)));
    }
    if (!splitter_) return {};
    return split_pieces(
        list, SplitBehavior::kMergedWithNext, false,
        [this](std::string_view text, std::vector<TextSpan>& out) { return splitter_->find_all(text, out); });
  }

 private:
  std::string replacement_;
  Scheme scheme_;
  std::optional<Regex> splitter_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  Result<> apply(PieceList& list) const override {
    for (const auto& part : parts_) TRY(part->apply(list));
    return {};
  }
  [[nodiscard]] bool ends_in_byte_level() const override {
    return !parts_.empty() && parts_.back()->ends_in_byte_level();
  }
  void leave_out_byte_level() override {
    if (!parts_.empty()) parts_.back()->leave_out_byte_level();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

bool is_number_code(char32_t code) { return unicode::is_in(code, unicode::kNumbers); }

// ASCII counts its symbols as punctuation too.
bool is_punctuation(char32_t code) {
  if (code < 0x80) return unicode::is_in(code, unicode::kPunctuation | unicode::kSymbols);
  return unicode::is_in(code, unicode::kPunctuation);
}

MadePreTokenizer make_metaspace(const Json& spec, const ComponentPlace& place) {
  std::string replacement = TRY(component_string(spec, "replacement", place));
  if (unicode::count_code_points(replacement) != 1) return place.fail("'replacement' has to be one character");
  // Files of older versions have add_prefix_space instead of prepend_scheme.
  const bool add_prefix = TRY(component_bool(spec, "add_prefix_space", true, place));
  std::string scheme_name = add_prefix ? "always" : "never";
  if (json_find(spec, "prepend_scheme") != nullptr) scheme_name = TRY(component_string(spec, "prepend_scheme", place));
  Metaspace::Scheme scheme = Metaspace::Scheme::kAlways;
  if (scheme_name == "first") {
    scheme = Metaspace::Scheme::kFirst;
  } else if (scheme_name == "never") {
    scheme = Metaspace::Scheme::kNever;
  } else if (scheme_name != "always") {
    return place.fail("unknown prepend_scheme " + quote(scheme_name));
  }
  std::optional<Regex> splitter;
  if (TRY(component_bool(spec, "split", true, place))) splitter = TRY(Regex::literal(replacement, place.file));
  return std::make_unique<Metaspace>(std::move(replacement), scheme, std::move(splitter));
}

MadePreTokenizer make_split(const Json& spec, const ComponentPlace& place) {
  Regex pattern = TRY(component_pattern(spec, place));
  const std::string name = TRY(component_string(spec, "behavior", place));
  const SplitBehavior behavior = TRY(parse_split_behavior(name, place.file));
  return std::make_unique<RegexSplit>(std::move(pattern), behavior, TRY(component_bool(spec, "invert", false, place)));
}

MadePreTokenizer make_byte_level(const Json& spec, const ComponentPlace& place) {
  std::optional<Regex> pattern;
  if (TRY(component_bool(spec, "use_regex", true, place))) pattern = TRY(Regex::compile(kGpt2Pattern, place.file));
  return std::make_unique<ByteLevel>(TRY(component_bool(spec, "add_prefix_space", true, place)), std::move(pattern));
}

MadePreTokenizer make_pre_tokenizer_sequence(const Json& spec, const ComponentPlace& place) {
  TRY(check_num_stages(spec, "pretokenizers", place));
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const Json& part : *TRY(component_list(spec, "pretokenizers", place))) {
    auto made = TRY(make_pre_tokenizer(part, place));
    if (made != nullptr) parts.push_back(std::move(made));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

MadePreTokenizer make_char_stage(const std::string& type, const Json& spec, const ComponentPlace& place) {
  if (type == "WhitespaceSplit") return std::make_unique<CharSplit>(unicode::is_white_space, SplitBehavior::kRemoved);
  if (type == "Digits") {
    const bool single = TRY(component_bool(spec, "individual_digits", false, place));
    return std::make_unique<CharSplit>(is_number_code, single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    std::string name = "Isolated";
    if (json_find(spec, "behavior") != nullptr) name = TRY(component_string(spec, "behavior", place));
    return std::make_unique<CharSplit>(is_punctuation, TRY(parse_split_behavior(name, place.file)));
  }
  if (type == "CharDelimiterSplit") {
    const std::string text = TRY(component_string(spec, "delimiter", place));
    if (unicode::count_code_points(text) != 1) return place.fail("'delimiter' has to be one character");
    size_t pos = 0;
    const char32_t delimiter = unicode::next_code_point(text, pos);
    return std::make_unique<CharSplit>([delimiter](char32_t code) { return code == delimiter; },
                                       SplitBehavior::kRemoved);
  }
  std::vector<std::unique_ptr<PreTokenizer>> parts;  // BertPreTokenizer
  parts.push_back(std::make_unique<CharSplit>(unicode::is_white_space, SplitBehavior::kRemoved));
  parts.push_back(std::make_unique<CharSplit>(is_punctuation, SplitBehavior::kIsolated));
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

}  // namespace

MadePreTokenizer make_pre_tokenizer(const Json& spec, const ComponentPlace& place) {
  if (spec.is_null()) return std::unique_ptr<PreTokenizer>();
  const std::string type = TRY(component_type(spec, place));
  if (type == "ByteLevel") return make_byte_level(spec, place);
  if (type == "Split") return make_split(spec, place);
  if (type == "Sequence") return make_pre_tokenizer_sequence(spec, place);
  if (type == "Metaspace") return make_metaspace(spec, place);
  if (type == "Whitespace") return std::make_unique<WordSplit>();
  if (type == "FixedLength") {
    const int64_t length = TRY(component_int(spec, "length", 5, place));
    if (length < 1) return place.fail("'length' has to be positive");
    return std::make_unique<FixedLength>(static_cast<size_t>(length));
  }
  static constexpr std::string_view kCharStages[] = {"WhitespaceSplit", "Digits", "Punctuation", "CharDelimiterSplit",
                                                     "BertPreTokenizer"};
  for (const std::string_view name : kCharStages) {
    if (type == name) return make_char_stage(type, spec, place);
  }
  return place.unsupported(type);
}

}  // namespace mortise
