// language_consistency: the part of a completion's words that is in one language, as in DeepSeek-R1 (arXiv:2501.12948,
// section 2.3.2: "the proportion of target language words in the chain of thought").
//
// A language is known by its script: a run of letters is a word, a Han, kana or Thai character is one by itself. Single
// letters (variables) do not count; formulas ($...$, \(...\), \[...\]) and code (```...```) are left out. Text without
// words: does not apply. Trap: languages of one script (English and French) count as the same.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"

namespace {

enum Script : unsigned {
  kNoScript = 0,
  kLatin = 1,
  kCyrillic = 2,
  kGreek = 4,
  kHan = 8,
  kKana = 16,
  kHangul = 32,
  kArabic = 64,
  kHebrew = 128,
  kDevanagari = 256,
  kThai = 512,
  kOther = 1024,
};
constexpr unsigned kWordPerCharacter = kHan | kKana | kThai;

struct Range {
  std::uint32_t first, last;
  unsigned script;
};
// Letters by Unicode block. A letter in no block here and above U+02FF is kOther if it is in a block of letters.
constexpr std::array<Range, 29> kRanges = {{
    {'A', 'Z', kLatin},          {'a', 'z', kLatin},          {0xC0, 0xD6, kLatin},      {0xD8, 0xF6, kLatin},
    {0xF8, 0x24F, kLatin},       {0x370, 0x3FF, kGreek},      {0x400, 0x52F, kCyrillic}, {0x530, 0x58F, kOther},
    {0x5D0, 0x5EA, kHebrew},     {0x620, 0x64A, kArabic},     {0x66E, 0x6D3, kArabic},   {0x750, 0x77F, kArabic},
    {0x900, 0x963, kDevanagari}, {0x971, 0x97F, kDevanagari}, {0x980, 0xDFF, kOther},    {0xE01, 0xE4E, kThai},
    {0xE80, 0x109F, kOther},     {0x10A0, 0x10FF, kOther},    {0x1100, 0x11FF, kHangul}, {0x1200, 0x1CFF, kOther},
    {0x1E00, 0x1EFF, kLatin},    {0x1F00, 0x1FFF, kGreek},    {0x3041, 0x30FF, kKana},   {0x3131, 0x318E, kHangul},
    {0x31F0, 0x31FF, kKana},     {0x3400, 0x4DBF, kHan},      {0x4E00, 0x9FFF, kHan},    {0xAC00, 0xD7A3, kHangul},
    {0x20000, 0x323AF, kHan},
}};

unsigned script_of(std::uint32_t c) {
  for (const Range& r : kRanges)
    if (c >= r.first && c <= r.last) return r.script;
  return kNoScript;
}

std::optional<unsigned> scripts_of(const std::string& language) {
  constexpr std::pair<const char*, unsigned> kLanguages[] = {
      {"en", kLatin},    {"de", kLatin},    {"fr", kLatin},  {"es", kLatin}, {"it", kLatin},      {"pt", kLatin},
      {"nl", kLatin},    {"pl", kLatin},    {"tr", kLatin},  {"vi", kLatin}, {"id", kLatin},      {"ru", kCyrillic},
      {"uk", kCyrillic}, {"bg", kCyrillic}, {"el", kGreek},  {"zh", kHan},   {"ko", kHangul},     {"ja", kHan | kKana},
      {"ar", kArabic},   {"fa", kArabic},   {"he", kHebrew}, {"th", kThai},  {"hi", kDevanagari}, {"mr", kDevanagari}};
  for (const auto& [name, scripts] : kLanguages)
    if (language == name) return scripts;
  return {};
}

// The next character; broken UTF-8 counts as one that is no letter.
std::uint32_t next_character(std::string_view text, std::size_t& i) {
  const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U; };
  const std::uint32_t lead = byte(i);
  const int more = lead < 0xC0 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF8 ? 3 : 0;
  std::uint32_t c = more == 0 ? lead : lead & (0x3FU >> more);
  for (int k = 1; k <= more; ++k) {
    if ((byte(i + std::size_t(k)) & 0xC0) != 0x80) {
      i += 1;
      return 0;
    }
    c = c << 6 | (byte(i + std::size_t(k)) & 0x3F);
  }
  i += 1 + std::size_t(more);
  return c;
}

struct LanguageConsistency : mortise::Reward {
  static constexpr const char* summary = "the fraction of words in the wanted language (DeepSeek-R1)";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string language = param("language", "en", "two-letter code of the wanted language");
  std::string column =
      param("column", "", "data column with the code of each row; a row without one: language").column();
  bool skip_formulas = param("skip_formulas", true, "ignore formulas and fenced code");

  void setup(mortise::Call) override { wanted(language); }

  double score(const mortise::Row& row) const {
    std::string code = language;
    if (!column.empty()) {
      if (const auto own = mortise::find_value(row, column)) code = mortise::as_text(*own);
    }
    const unsigned scripts = wanted(code);
    const std::string text = skip_formulas ? prose(row.completion()) : std::string(row.completion());
    double in = 0, all = 0;
    const auto count = [&](unsigned script, std::size_t letters) {
      if (letters < 2 && (script & kWordPerCharacter) == 0) return;
      ++all;
      if ((script & scripts) != 0) ++in;
    };
    unsigned current = kNoScript;
    std::size_t letters = 0;
    for (std::size_t i = 0; i < text.size();) {
      const unsigned script = script_of(next_character(text, i));
      if (script != current || (script & kWordPerCharacter) != 0) {
        if (current != kNoScript) count(current, letters);
        current = script;
        letters = 0;
      }
      ++letters;
    }
    if (current != kNoScript) count(current, letters);
    return all == 0 ? mortise::not_applicable : in / all;
  }

 private:
  static unsigned wanted(const std::string& code) {
    const auto scripts = scripts_of(code);
    if (!scripts) {
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "language '" + code +
                        "' is not known; known: en de fr es it pt nl pl tr vi id ru uk bg el zh ko "
                        "ja ar fa he th hi mr");
    }
    return *scripts;
  }

  // Without formulas and fenced code; an opening mark without its end is prose.
  static std::string prose(std::string_view text) {
    constexpr std::pair<std::string_view, std::string_view> kMarks[] = {
        {"```", "```"}, {"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    std::array<bool, 5> has_end;
    has_end.fill(true);
    std::string out;
    std::size_t i = 0;
    while (i < text.size()) {
      std::size_t end = std::string_view::npos;
      for (std::size_t k = 0; k < 5 && end == std::string_view::npos; ++k) {
        const auto& [open, close] = kMarks[k];
        if (!has_end[k] || text.compare(i, open.size(), open) != 0) continue;
        end = text.find(close, i + open.size());
        if (end == std::string_view::npos) {
          has_end[k] = false;  // nor behind any later mark
        } else {
          end += close.size();
        }
      }
      out += end == std::string_view::npos ? text[i] : ' ';
      i = end == std::string_view::npos ? i + 1 : end;
    }
    return out;
  }
};

}  // namespace

MORTISE_REWARD("language_consistency", LanguageConsistency)
