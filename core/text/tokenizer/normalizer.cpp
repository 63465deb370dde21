// See normalizer.h.
#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "foundation/base/text.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode/mark_order.h"
#include "text/unicode/properties.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

using MadeNormalizer = Result<std::unique_ptr<Normalizer>>;

constexpr size_t kLongestForm = 11;  // a normal form has at most so many times as many bytes (U+FDFA)

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(int options) : options_(options) {}
  Result<> apply(NormalText& piece) const override {
    const bool ascii =
        std::all_of(piece.text.begin(), piece.text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (ascii) return {};
    // The library's tables are of Unicode 9. Later characters do not change, and separate the text around them.
    const std::string_view text = piece.text;
    if (text.size() > piece.max_bytes / kLongestForm) return grows_too_much("Unicode normalization", piece.max_bytes);
    std::string out;
    size_t done = 0;
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      if (!unicode::is_normalized_since_9(unicode::next_code_point(text, pos))) continue;
      TRY(append_form(text.substr(done, begin - done), out));
      out += text.substr(begin, pos - begin);
      done = pos;
    }
    TRY(append_form(text.substr(done), out));
    piece.text = std::move(out);
    return {};
  }

 private:
  Result<> append_form(std::string_view text, std::string& out) const {
    if (text.empty()) return {};
    const auto sorted = unicode::with_sorted_marks(text, options_);
    if (sorted) text = *sorted;
    utf8proc_uint8_t* mapped = nullptr;
    const auto* source = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const utf8proc_ssize_t size = utf8proc_map(source, static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                               static_cast<utf8proc_option_t>(options_ | UTF8PROC_STABLE));
    if (size < 0)
      return Error{ErrorKind::kData, std::string("Unicode normalization failed: ") + utf8proc_errmsg(size), "", ""};
    out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
    std::free(mapped);
    return {};
  }

  int options_;
};

class Lowercase final : public Normalizer {
 public:
  Result<> apply(NormalText& piece) const override {
    std::string out;
    out.reserve(piece.text.size());
    for (size_t pos = 0; pos < piece.text.size();)
      unicode::append_lower(out, unicode::next_code_point(piece.text, pos));
    if (out.size() > piece.max_bytes) return grows_too_much("normalizer Lowercase", piece.max_bytes);
    piece.text = std::move(out);
    return {};
  }
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Result<> apply(NormalText& piece) const override {
    std::vector<TextSpan> spans;
    TRY(pattern_.find_all(piece.text, spans));
    if (spans.empty()) return {};
    if (content_.empty() && spans.front().begin == 0 && spans.front().end > 0) piece.at_start = false;
    size_t size = piece.text.size();
    for (const TextSpan& span : spans) {
      size += content_.size() - (span.end - span.begin);
      if (size > piece.max_bytes && size < std::numeric_limits<size_t>::max() / 2)
        return grows_too_much("normalizer Replace", piece.max_bytes);
    }
    std::string out;
    out.reserve(size);
    size_t done = 0;
    for (const TextSpan& span : spans) {
      out.append(piece.text, done, span.begin - done);
      out += content_;
      done = span.end;
    }
    out.append(piece.text, done);
    piece.text = std::move(out);
    return {};
  }

 private:
  Regex pattern_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  Result<> apply(NormalText& piece) const override {
    if (piece.text.empty()) return {};
    if (piece.text.size() + text_.size() > piece.max_bytes)
      return grows_too_much("normalizer Prepend", piece.max_bytes);
    piece.text.insert(0, text_);
    return {};
  }

 private:
  std::string text_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  Result<> apply(NormalText& piece) const override {
    size_t begin = 0;
    size_t end = piece.text.size();
    for (size_t pos = 0; left_ && pos < end && unicode::is_white_space(unicode::next_code_point(piece.text, pos));)
      begin = pos;
    for (size_t pos = end;
         right_ && pos > begin && unicode::is_white_space(unicode::previous_code_point(piece.text, pos));)
      end = pos;
    if (begin > 0) piece.at_start = false;
    piece.text = piece.text.substr(begin, end - begin);
    return {};
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents final : public Normalizer {
 public:
  Result<> apply(NormalText& piece) const override {
    std::string out;
    for (size_t pos = 0; pos < piece.text.size();) {
      const char32_t code = unicode::next_code_point(piece.text, pos);
      if (!unicode::is_in(code, unicode::kMarks)) append_utf8(out, code);
    }
    piece.text = std::move(out);
    return {};
  }
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  Result<> apply(NormalText& piece) const override {
    if (2 * piece.text.size() > piece.max_bytes) return grows_too_much("normalizer ByteLevel", piece.max_bytes);
    piece.text = byte_level_text(piece.text);
    return {};
  }
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  Result<> apply(NormalText& piece) const override {
    for (const auto& part : parts_) TRY(part->apply(piece));
    return {};
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

MadeNormalizer make_normalizer_sequence(const Json& spec, const ComponentPlace& place) {
  TRY(check_num_stages(spec, "normalizers", place));
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const Json& part : *TRY(component_list(spec, "normalizers", place))) {
    auto made = TRY(make_normalizer(part, place));
    if (made != nullptr) parts.push_back(std::move(made));
  }
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

}  // namespace

std::unique_ptr<Normalizer> make_nfc_normalizer() { return std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE); }

MadeNormalizer make_normalizer(const Json& spec, const ComponentPlace& place) {
  if (spec.is_null()) return std::unique_ptr<Normalizer>();
  const std::string type = TRY(component_type(spec, place));
  if (type == "NFC") return make_nfc_normalizer();
  if (type == "NFD") return std::make_unique<UnicodeForm>(UTF8PROC_DECOMPOSE);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Precompiled") return make_precompiled_normalizer(spec, place);
  if (type == "Prepend") return std::make_unique<Prepend>(TRY(component_string(spec, "prepend", place)));
  if (type == "Sequence") return make_normalizer_sequence(spec, place);
  if (type == "Strip") {
    const bool left = TRY(component_bool(spec, "strip_left", true, place));
    return std::make_unique<Strip>(left, TRY(component_bool(spec, "strip_right", true, place)));
  }
  if (type == "Replace") {
    Regex pattern = TRY(component_pattern(spec, place));
    return std::make_unique<Replace>(std::move(pattern), TRY(component_string(spec, "content", place)));
  }
  return place.unsupported(type);
}

}  // namespace mortise
