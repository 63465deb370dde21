// repetition: punishes n-grams that come again.
//
//   reward = (1 - distinct n-grams / n-grams) * max_penalty; 0 for a completion shorter than n
// Demystifying Long Chain-of-Thought Reasoning (arXiv:2502.03373), appendix C.2. unit = "tokens" is TRL's
// get_repetition_penalty_reward, unit = "words" ms-swift's `repetition` (words between white space, lower case).
// Trap: words make no sense of a language without spaces; tokens do.
#include <algorithm>
#include <string_view>

#include <mortise/cpp/mortise.hpp>

#include "../shared/pattern.h"

namespace {

struct Repetition : mortise::Reward {
  static constexpr const char* summary = "penalizes repeated n-grams of tokens (TRL) or words (ms-swift)";
  static constexpr const char* doc = "(1 - distinct / all n-grams) * max_penalty. arXiv:2502.03373, C.2";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::int64_t ngram_size = param("ngram_size", 3, "n").range(1, 1000);
  double max_penalty = param("max_penalty", -1.0, "reward if everything is repeated").range(-1e9, 0);
  std::string unit = param("unit", "tokens", "n-grams of 'tokens' or of 'words'").choices({"tokens", "words"});

  double score(const mortise::Row& row) const {
    if (unit == "words") return penalty(words(row.completion()));
    const auto ids = row.completion_ids();
    return penalty(std::vector<std::int64_t>(ids.begin(), ids.end()));
  }

 private:
  template <class Item>
  double penalty(const std::vector<Item>& items) const {
    const auto n = std::size_t(ngram_size);
    if (items.size() < n) return 0;
    // Positions of n-grams, sorted by their content, so that equal ones are neighbours.
    std::vector<std::size_t> places(items.size() - n + 1);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
    const auto at = [&](std::size_t i) { return items.begin() + std::ptrdiff_t(i); };
    std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return std::lexicographical_compare(at(a), at(a + n), at(b), at(b + n));
    });
    std::size_t distinct = 1;
    for (std::size_t i = 1; i < places.size(); ++i)
      distinct += std::equal(at(places[i]), at(places[i] + n), at(places[i - 1])) ? 0 : 1;
    const double scale = 1 - double(distinct) / double(places.size());
    return scale == 0 ? 0 : scale * max_penalty;
  }

  static std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> out;
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) out.push_back(std::move(word));
      word.clear();
    };
    const std::string lower = mortise::lower_case(std::string(text));
    for (std::size_t i = 0; i < lower.size();) {
      const char c = lower[i];
      if (const std::size_t space = space_at(lower, i); space > 0) {
        end_word();
        i += space;
      } else {
        word += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;  // for invalid UTF-8
        ++i;
      }
    }
    end_word();
    return out;
  }

  // Bytes of the white space at text[i], as in Python's split(); 0 for none.
  static std::size_t space_at(std::string_view text, std::size_t i) {
    const char c = text[i];
    if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f')) return 1;
    if (static_cast<unsigned char>(c) < 0x80) return 0;
    for (const std::string_view two : {"\xc2\x85", "\xc2\xa0"})
      if (text.substr(i, 2) == two) return 2;
    for (const std::string_view three :
         {"\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009",
          "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"})
      if (text.substr(i, 3) == three) return 3;
    return 0;
  }
};

}  // namespace

MORTISE_REWARD("repetition", Repetition)
