// choice: the letter of a multiple-choice question.
//
// It searches, in this order: the last \boxed{}; the last <answer>...</answer>; after the last "answer is", "answer:"
// or "choice is"; a short text as a whole; the last letter of the choices that is alone and in upper case, with or
// without brackets ("(B)", "B."). A row without a letter is wrong. "(B) 42", "\text{B}" and "**B**" are B.
#include <algorithm>
#include <optional>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"

namespace {

constexpr std::size_t kMaxWhole = 12;  // bytes of a text that is nothing but a choice

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80; }
char upper(char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; }

struct Choice : mortise::Reward {
  static constexpr const char* summary = "the letter of a multiple-choice answer equals the answer column";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;

  std::string column = param("column", "answer", "data column with the right letter, or a dotted path").column();
  std::string letters = param("letters", "ABCDEFGHIJ", "the choices, in upper case");
  double hit = param("hit", 1.0, "score of the right letter");
  double miss = param("miss", 0.0, "score of anything else");

  void setup(mortise::Call) override {
    const bool fine =
        !letters.empty() && std::all_of(letters.begin(), letters.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!fine) mortise::fail(MORTISE_INVALID_ARGUMENT, "letters: '" + letters + "' must be letters in upper case");
  }

  double score(const mortise::Row& row) const {
    const auto want = mortise::find_value(row, column);
    if (!want) return mortise::not_applicable;
    const std::optional<char> right = leading(mortise::as_text(*want));
    if (!right) {
      mortise::fail(MORTISE_INVALID_ARGUMENT,
                    "column '" + column + "' holds '" + mortise::as_text(*want) + "', no letter of " + letters);
    }
    const std::optional<char> got = chosen(row.completion());
    row.note("pred", got ? std::string(1, *got) : std::string());
    return got && *got == *right ? hit : miss;
  }

 private:
  // The choice that a text begins with: "B", "(b)", "\text{B}", "B. Paris".
  std::optional<char> leading(std::string_view text) const {
    std::size_t i = 0;
    while (i < text.size()) {
      if (text.compare(i, 2, "\\(") == 0) {
        i += 2;
      } else if (text[i] == '\\') {  // \text, \mathrm
        ++i;
        while (i < text.size() && is_letter(text[i])) ++i;
      } else if (is_word(text[i])) {
        break;
      } else {
        ++i;
      }
    }
    if (i >= text.size() || (i + 1 < text.size() && (is_word(text[i + 1]) || text[i + 1] == '\''))) return {};
    const char letter = upper(text[i]);
    if (letters.find(letter) == std::string::npos) return {};
    return letter;
  }

  std::optional<char> chosen(std::string_view text) const {
    for (const std::string_view part : {between(text, "\\boxed{", "}"), between(text, "<answer>", "</answer>")}) {
      if (part.data() != nullptr) return leading(part);
    }
    if (const std::string_view rest = behind_answer(text); rest.data() != nullptr) {
      if (const auto found = leading(rest.substr(0, 40))) return found;
    }
    if (text.size() <= kMaxWhole) {
      if (const auto found = leading(text)) return found;
    }
    return last_alone(text);
  }
  // Behind the last `open`, up to `close`; no data where it is not there.
  static std::string_view between(std::string_view text, std::string_view open, std::string_view close) {
    const std::size_t at = text.rfind(open);
    if (at == std::string_view::npos) return {};
    const std::string_view rest = text.substr(at + open.size());
    return rest.substr(0, rest.find(close));
  }

  static std::string_view behind_answer(std::string_view text) {
    std::string_view best;
    for (const std::string_view mark : {"nswer is", "nswer:", "nswer**:", "hoice is", "hoice:", "NSWER:"}) {
      const std::size_t at = text.rfind(mark);
      if (at == std::string_view::npos) continue;
      const std::string_view rest = text.substr(at + mark.size());
      if (best.data() == nullptr || rest.size() < best.size()) best = rest;
    }
    return best;
  }

  std::optional<char> last_alone(std::string_view text) const {
    for (std::size_t i = text.size(); i-- > 0;) {
      const bool alone = (i == 0 || !(is_word(text[i - 1]) || text[i - 1] == '\'')) &&
                         (i + 1 == text.size() || !(is_word(text[i + 1]) || text[i + 1] == '\''));
      if (!alone || letters.find(text[i]) == std::string::npos) continue;
      // "A" and "I" begin sentences too.
      const bool in_prose =
          i + 2 < text.size() && text[i + 1] == ' ' && is_letter(text[i + 2]) && (text[i] == 'A' || text[i] == 'I');
      if (!in_prose) return text[i];
    }
    return {};
  }
};

}  // namespace

MORTISE_REWARD("choice", Choice)
