// The normalizer Precompiled: SentencePiece's table of replacements, which tokenizer.json has in base64.
//
// It handles one grapheme at a time. If the grapheme has fewer than six bytes and begins with a key, that key's
// replacement replaces it as a whole. Otherwise each of its characters is looked up alone. The shortest of several keys
// wins. The tokenizers library does the same. Thread rule: constant after loading.
#include <utf8proc.h>

#include <optional>

#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/utf8.h"

namespace mortise {
namespace {

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Nothing where the text is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const size_t padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
    uint32_t bits = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int value = j + padding < 4 ? base64_value(text[i + j]) : 0;
      if (value < 0) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(value);
    }
    for (size_t j = 0; j + padding < 3; ++j) out.push_back(static_cast<char>(bits >> (16 - 8 * j) & 0xFF));
  }
  return out;
}

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(Charsmap table) : table_(std::move(table)) {}

  Result<> apply(NormalText& piece) const override {
    std::string out;
    out.reserve(piece.text.size());
    const std::string_view text = piece.text;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = grapheme_end(text, begin);
      add(text.substr(begin, end - begin), piece.max_bytes, out);
      if (out.size() > piece.max_bytes) return grows_too_much("normalizer Precompiled", piece.max_bytes);
      begin = end;
    }
    piece.text = std::move(out);
    return {};
  }

 private:
  static size_t grapheme_end(std::string_view text, size_t pos) {
    utf8proc_int32_t state = 0;
    auto code = static_cast<utf8proc_int32_t>(unicode::next_code_point(text, pos));
    while (pos < text.size()) {
      size_t next = pos;
      const auto following = static_cast<utf8proc_int32_t>(unicode::next_code_point(text, next));
      if (utf8proc_grapheme_break_stateful(code, following, &state)) break;
      code = following;
      pos = next;
    }
    return pos;
  }

  void add(std::string_view grapheme, size_t max_bytes, std::string& out) const {
    constexpr size_t kLongWhole = 6;  // bytes from which on a grapheme is not looked up as a whole
    if (grapheme.size() < kLongWhole) {
      if (const auto found = table_.shortest(grapheme)) return void(out += found->replacement);
    }
    for (size_t pos = 0; pos < grapheme.size() && out.size() <= max_bytes;) {
      const std::string_view character = grapheme.substr(pos, unicode::utf8_length(grapheme[pos]));
      const auto found = table_.shortest(character);
      out += found ? found->replacement : character;
      pos += character.size();
    }
  }

  Charsmap table_;
};

}  // namespace

Result<std::unique_ptr<Normalizer>> make_precompiled_normalizer(const Json& spec, const ComponentPlace& place) {
  const auto table = decode_base64(TRY(component_string(spec, "precompiled_charsmap", place)));
  if (!table) return place.fail("'precompiled_charsmap' has to be base64");
  return std::make_unique<Precompiled>(TRY(Charsmap::parse(*table, place)));
}

}  // namespace mortise
