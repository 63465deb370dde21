// Finds formulas in delimiters, and those that a word such as "answer" announces.
#include "marked.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "extract.h"
#include "parse/text.h"
#include "scan.h"
#include "vocabulary.h"

namespace mortise::math {

std::string_view literal_fraction_at(std::string_view text, std::size_t i) {
  constexpr std::string_view kFraction = "\\frac";
  std::size_t at = i + (text.substr(i, 1) == "-" ? 1 : 0);
  if (text.substr(at, kFraction.size()) != kFraction) return {};
  at += kFraction.size();
  for (int part = 0; part < 2; ++part) {
    const std::size_t close = text.substr(at, 1) == "{" ? text.find_first_not_of("-0123456789.,", at + 1) : kNone;
    if (close == kNone || text[close] != '}' || !is_digit(text[close - 1])) return {};
    at = close + 1;
  }
  return text.substr(i, at - i);
}

namespace {

// Looks for formulas that are marked as such, in delimiters or as a fraction of numbers. One that opens and never
// closes costs a look through the rest of the text, so their number is bounded.
class MarkedFormulas {
 public:
  explicit MarkedFormulas(std::string_view text) : text_(text) {}

  std::string_view at(std::size_t i) {
    if (const std::string_view fraction = literal_fraction_at(text_, i); !fraction.empty()) return fraction;
    const char next = i + 1 < text_.size() ? text_[i + 1] : ' ';
    const bool escaped = i > 0 && text_[i - 1] == '\\';  // a dollar of prose
    const bool may_open =
        i < text_.size() && ((text_[i] == '$' && !escaped) || (text_[i] == '\\' && (next == '(' || next == '[')));
    if (!may_open || misses_ >= 8) return {};
    const std::string_view formula = formula_at(text_, i);
    if (formula.empty()) ++misses_;
    return parse::trim(content(formula)).empty() ? std::string_view() : formula;
  }

  static std::string_view content(std::string_view formula) {
    for (const Delimiters& d : kDelimiters) {
      if (formula.size() >= d.open.size() + d.close.size() && formula.substr(0, d.open.size()) == d.open)
        return formula.substr(d.open.size(), formula.size() - d.open.size() - d.close.size());
    }
    return formula;
  }

 private:
  std::string_view text_;
  int misses_ = 0;
};

std::size_t behind_spaces(std::string_view text, std::size_t i) {
  while (i < text.size() && is_space(text[i])) ++i;
  return i;
}

// The formula at `begin` and those that commas, "and" and "or" join to it, and where they end.
std::pair<std::string, std::size_t> joined_formulas(std::string_view text, std::size_t begin,
                                                    MarkedFormulas& formulas) {
  std::string answer;
  std::size_t end = begin;
  for (std::size_t i = begin, count = 0; count < kMaxJoined; ++count) {
    const std::string_view formula = formulas.at(i);
    if (formula.empty()) break;
    answer += (answer.empty() ? "" : ", ") + std::string(MarkedFormulas::content(formula));
    end = i + formula.size();
    const std::size_t percent = text.substr(end, 2) == "\\%" ? 2 : text.substr(end, 1) == "%" ? 1 : 0;
    answer += percent > 0 ? "\\%" : "";
    end += percent;
    if (const std::size_t scale = scale_words_at(text, end); scale > 0) {
      answer += "\\text{" + std::string(text.substr(end, scale)) + "}";
      end += scale;
    }
    i = behind_spaces(text, end);
    const bool comma = text.substr(i, 1) == ",";
    i = behind_spaces(text, i + (comma ? 1 : 0));
    const std::size_t word = text.substr(i, 3) == "and" ? 3 : text.substr(i, 2) == "or" ? 2 : 0;
    if (!comma && word == 0) break;
    i = behind_spaces(text, i + word);
  }
  return {answer, end};
}

bool reads(std::string_view text, std::size_t i, std::string_view lower_case) {
  if (text.size() - i < lower_case.size()) return false;
  return std::equal(lower_case.begin(), lower_case.end(), text.begin() + std::ptrdiff_t(i),
                    [](char want, char c) { return want == lower(c); });
}

// Where the formula of an answer begins that is announced up to text[i]: "is" at most 100 bytes on and the formula
// right behind it, or the first one within 50 bytes.
std::size_t announced_formula(std::string_view text, std::size_t i, bool behind_is, MarkedFormulas& formulas) {
  const std::size_t last = std::min(text.size(), i + (behind_is ? 100 : 50) + 1);
  for (; i < last; ++i) {
    std::size_t at = i;
    if (behind_is) {
      if (!is_space(text[i])) continue;
      at = behind_spaces(text, i);
      if (text.substr(at, 2) != "is") continue;
      at += 2;
      at = behind_spaces(text, at + (text.substr(at, 1) == ":" ? 1 : 0));
    }
    if (!formulas.at(at).empty()) return at;
  }
  return kNone;
}

// A number that begins a word at text[i], with its sign, money's or a bracket.
bool number_begins_at(std::string_view text, std::size_t i) {
  if (i > 0 && !is_space(text[i - 1]) && text[i - 1] != '=') return false;
  if (text.substr(i, 2) == "**") i += 2;
  for (const std::string_view money : {"$", "€", "£", "¥"})
    i += text.substr(i, money.size()) == money ? money.size() : 0;
  for (const char sign : {'-', '(', '-'}) i += i < text.size() && text[i] == sign ? 1 : 0;
  i += text.substr(i, 1) == "." ? 1 : 0;
  return i < text.size() && is_digit(text[i]);
}

}  // namespace

std::string joined_formulas_at(std::string_view text, std::size_t begin) {
  MarkedFormulas formulas(text);
  return joined_formulas(text, begin, formulas).first;
}

std::string marked_answer(std::string_view text) {
  MarkedFormulas formulas(text);
  for (const std::string_view words : {"final answer", "answer:", "answer"}) {
    std::string answer;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (!reads(text, i, words)) continue;
      const std::size_t begin = announced_formula(text, i + words.size(), words == "final answer", formulas);
      if (begin == kNone) continue;
      std::tie(answer, i) = joined_formulas(text, begin, formulas);
      --i;
    }
    if (!answer.empty()) return answer;
  }
  return "";
}

std::string formula_in_prose(std::string_view text) {
  if (!last_box(text).empty()) return "";
  MarkedFormulas formulas(text);
  std::string last;
  bool words = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view formula = formulas.at(i);
    if (MarkedFormulas::content(formula).size() < formula.size()) {
      std::tie(last, i) = joined_formulas(text, i, formulas);
    } else {
      words = is_letter(text[i]) || words;
      ++i;
    }
  }
  return words ? last : "";
}

bool is_marked(std::string_view text) {
  if (!last_box(text).empty()) return true;
  MarkedFormulas formulas(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (number_begins_at(text, i) || !formulas.at(i).empty()) return true;
  }
  return false;
}

}  // namespace mortise::math
