// Finds boxes, marks, formulas and numbers in a completion, and chooses the answer.
#include "extract.h"

#include <algorithm>
#include <optional>

#include "marked.h"
#include "normalise.h"
#include "parse/text.h"
#include "scan.h"
#include "vocabulary.h"

namespace mortise::math {
namespace {

constexpr std::size_t kMaxBetween = 24;  // bytes between two of them
constexpr std::size_t kMaxPlain = 400;   // bytes of an answer in plain text

struct Box {
  std::size_t begin, end;  // range of the whole command
  std::string_view content;
};

// Does \boxed or \fbox end before `brace`? Returns where it begins.
std::optional<std::size_t> box_command(std::string_view text, std::size_t brace) {
  while (brace > 0 && is_space(text[brace - 1])) --brace;
  for (const std::string_view name : {"\\boxed", "\\fbox"}) {
    if (brace >= name.size() && text.substr(brace - name.size(), name.size()) == name) return brace - name.size();
  }
  return {};
}

// All closed boxes, in the order of their ends: an outer one comes behind those in it.
std::vector<Box> boxes(std::string_view text) {
  std::vector<Box> out;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && !is_letter(text[i + 1])) {
      ++i;
    } else if (text[i] == '{') {
      open.push_back(i);
    } else if (text[i] == '}' && !open.empty()) {
      const std::size_t brace = open.back();
      open.pop_back();
      const std::string_view content = text.substr(brace + 1, i - brace - 1);
      if (const auto begin = box_command(text, brace)) out.push_back({*begin, i + 1, content});
    }
  }
  return out;
}

// "and", "or", commas and math delimiters between two boxes.
bool joins(std::string_view between) {
  if (between.size() > kMaxBetween) return false;
  std::string letters;
  for (const char c : between) {
    if (is_letter(c)) {
      letters += c;
    } else if (!is_space(c) && std::string_view(",$\\{};").find(c) == kNone) {
      return false;
    }
  }
  return is_one_of(letters, {"", "and", "or", "textand", "textor", "quad", "quadtextand", "quadtextor"});
}

// Behind the last "####", to the end of the line.
std::string behind_hashes(std::string_view text) {
  const std::size_t at = text.rfind("####");
  if (at == kNone) return "";
  const std::string_view rest = text.substr(at + 4);
  return std::string(parse::trim(rest.substr(0, rest.find('\n'))));
}

// Is the word one that may be in a formula in plain text?
bool is_mathematical(std::string_view word) {
  return word.size() == 1 || is_one_of(word, {"sin", "cos", "tan", "log", "ln", "exp", "sqrt", "pi", "and", "or"});
}

// Dollar signs around prose are money.
bool is_formula(std::string_view content) {
  for (std::size_t i = 0; i < content.size(); ++i) {
    if (content[i] == '\\') {
      if (content.substr(i, 5) == "\\text" || content.substr(i, 5) == "\\math") return true;
      while (i + 1 < content.size() && is_letter(content[i + 1])) ++i;
      continue;
    }
    if (!is_letter(content[i])) continue;
    std::size_t end = i;
    while (end < content.size() && is_letter(content[end])) ++end;
    if (end - i >= 3 && !is_mathematical(content.substr(i, end - i))) return false;
    i = end - 1;
  }
  return true;
}

// "$5$ million", the word made part of the formula.
std::string scaled_formula(std::string_view text, std::size_t begin, std::size_t size) {
  const std::size_t words = scale_words_at(text, begin + size);
  std::string out(text.substr(begin, size));
  return words == 0 ? out : out + "\\text{" + std::string(text.substr(begin + size, words)) + "}";
}

std::string last_formula(std::string_view text) {
  std::string last;
  std::size_t i = 0, misses = 0;
  while (i < text.size()) {
    const char next = i + 1 < text.size() ? text[i + 1] : ' ';
    const bool escaped = i > 0 && text[i - 1] == '\\';  // a dollar of prose
    const bool may_open = (text[i] == '$' && !escaped) || (text[i] == '\\' && (next == '(' || next == '['));
    const std::string_view formula = may_open && misses < 8 ? formula_at(text, i) : std::string_view();
    if (may_open && formula.empty()) ++misses;  // each looks through the rest of the text
    i += formula.empty() ? 1 : formula.size();
    if (formula.empty() || !is_formula(formula) || parse::trim(formula).size() <= 2) continue;
    last = scaled_formula(text, i - formula.size(), formula.size());
  }
  return last;
}

// How far a formula in plain text goes: to a word, or to the end of a sentence.
std::size_t plain_end(std::string_view text) {
  std::size_t end = 0, i = 0, depth = 0;
  while (i < text.size() && i < kMaxPlain) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : ' ';
    if (c == '\\') {
      std::size_t k = i + 1;
      while (k < text.size() && is_letter(text[k])) ++k;
      if (k == i + 1) ++k;
      i = k;
      end = std::min(i, text.size());
    } else if (const std::size_t scale = end > 0 ? scale_words_at(text, i) : 0; scale > 0) {
      i += scale;
      end = i;
    } else if (is_letter(c)) {
      std::size_t k = i;
      while (k < text.size() && is_letter(text[k])) ++k;
      const std::string_view word = text.substr(i, k - i);
      if (depth == 0 && !is_mathematical(word)) break;
      i = k;
      if (!is_one_of(word, {"and", "or"})) end = i;
    } else if (c == '\n' || ((c == '.' || c == '?' || c == ';') && (is_space(next) || next == '*' || next == '"'))) {
      break;
    } else {
      if (c == '{' || c == '(' || c == '[') ++depth;
      if (depth > 0 && (c == '}' || c == ')' || c == ']')) --depth;
      ++i;
      if (!is_space(c) && c != ',' && c != '*') end = i;
    }
  }
  return end;
}

// The answer at the start of `rest`: a formula, else mathematics in plain text, else the words up to the end of the
// sentence.
std::vector<std::string> leading_answers(std::string_view rest) {
  std::vector<std::string> out;
  while (!rest.empty() && (is_space(rest[0]) || std::string_view("*:\"_`").find(rest[0]) != kNone))
    rest.remove_prefix(1);
  if (rest.empty()) return out;
  if (!formula_at(rest, 0).empty()) return {joined_formulas_at(rest, 0)};
  const std::string_view plain = rest.substr(0, plain_end(rest));
  if (!plain.empty()) out.emplace_back(plain);
  const std::string_view sentence = rest.substr(0, rest.find_first_of("\n"));
  const std::size_t dollar = sentence.find('$');
  if (plain.empty() && dollar != kNone) out.emplace_back(formula_at(sentence, dollar));
  if (plain.empty() && sentence.size() <= 60) out.emplace_back(sentence.substr(0, sentence.find(". ")));
  return out;
}

// Behind the last "answer is", "answer:", "answer =".
std::string_view behind_answer(std::string_view text) {
  std::size_t found = kNone;
  for (std::size_t i = 0; i + 6 <= text.size(); ++i) {
    if (lower(text[i]) != 'a' || lower(text[i + 1]) != 'n') continue;
    std::string word;
    for (const char c : text.substr(i, 6)) word += lower(c);
    if (word != "answer") continue;
    std::size_t k = i + 6;
    while (k < text.size() && (text[k] == '*' || is_space(text[k]))) ++k;
    const std::string_view rest = text.substr(k);
    if (rest.substr(0, 3) == "is " || rest.substr(0, 3) == "is:" || rest.substr(0, 3) == "is\n") found = k + 2;
    if (rest.substr(0, 1) == ":" || rest.substr(0, 1) == "=") found = k + 1;
  }
  for (const std::string_view chinese : {"答案是", "答案为", "答案：", "答案:"}) {
    const std::size_t at = text.rfind(chinese);
    if (at != kNone && (found == kNone || at > found)) found = at + chinese.size();
  }
  return found == kNone ? std::string_view() : text.substr(found);
}

// "\frac{3}{4}" or "(2, 3)" of numbers that ends right behind the digit before text[last].
std::string closed_numbers(std::string_view text, std::size_t last) {
  const char close = last < text.size() ? text[last] : ' ';
  if (close == '}') {
    const std::size_t begin = text.rfind("\\frac", last);
    const std::size_t from = begin != kNone && begin > 0 && text[begin - 1] == '-' ? begin - 1 : begin;
    const std::string_view fraction = begin == kNone ? "" : literal_fraction_at(text, from);
    return fraction.size() + from == last + 1 ? std::string(fraction) : "";
  }
  if (close != ')' && close != ']') return "";
  const std::size_t begin = text.find_last_not_of("-+0123456789.,/ ", last - 1);
  if (begin == kNone || (text[begin] != '(' && text[begin] != '[')) return "";
  const std::string_view whole = text.substr(begin, last + 1 - begin);
  return whole.size() <= kMaxPlain && whole.find(',') != kNone ? std::string(whole) : "";
}

// "-1,234.5", "3/4", "25%", with the sign where it is one.
std::string last_number(std::string_view text) {
  std::size_t last = text.size();
  while (last > 0 && !is_digit(text[last - 1])) --last;
  if (last == 0) return "";
  if (std::string closed = closed_numbers(text, last); !closed.empty()) return closed;
  std::size_t first = last - 1;
  const auto is_part = [&](std::size_t i) {
    const char c = text[i];
    return is_digit(c) || ((c == ',' || c == '.' || c == '/') && is_digit(text[i + 1]));
  };
  while (first > 0 && last - first < kMaxAnswer && is_part(first - 1)) --first;
  if (first > 0 && text[first - 1] == '$') --first;
  if (first > 0 && text[first - 1] == '\\') --first;
  const char before = first > 1 ? text[first - 2] : ' ';
  if (first > 0 && text[first - 1] == '-' && !is_digit(before) && before != ')') --first;
  if (first > 2 && text.substr(first - 3, 3) == "−") first -= 3;
  if (last < text.size() && text[last] == '%') ++last;
  last += scale_words_at(text, last);
  std::string_view number = text.substr(first, last - first);
  while (!number.empty() && (number[0] == ',' || number[0] == '/')) number.remove_prefix(1);
  return std::string(number);
}

// A text that is nothing but a formula.
bool is_all_plain(std::string_view text) {
  const std::size_t end = plain_end(text);
  return end > 0 && parse::trim(text.substr(end)).find_first_not_of(".*") == kNone;
}

}  // namespace

std::string last_box(std::string_view text) {
  std::vector<Box> all = boxes(text);
  all.erase(std::remove_if(all.begin(), all.end(), [](const Box& b) { return parse::trim(b.content).empty(); }),
            all.end());
  if (all.empty()) return "";
  std::string answer(all.back().content);
  std::size_t begin = all.back().begin, joined = 1;
  for (std::size_t k = all.size() - 1; k-- > 0 && joined < kMaxJoined;) {
    if (all[k].begin >= begin) continue;  // inside the one behind
    if (all[k].end > begin || !joins(text.substr(all[k].end, begin - all[k].end))) break;
    answer = std::string(all[k].content) + ", " + answer;
    begin = all[k].begin;
    ++joined;
  }
  return answer;
}

std::vector<std::string> extract(std::string_view completion, Extraction extraction) {
  std::vector<std::string> out;
  // The text after the reasoning, if there is any.
  const std::size_t thought = completion.rfind("</think>");
  if (thought != kNone) {
    out = extract(completion.substr(thought + 8), extraction);
    if (!out.empty()) return out;
  }
  const auto add = [&](std::string candidate) {
    if (!parse::trim(candidate).empty()) out.push_back(std::move(candidate));
  };
  add(last_box(completion));
  if (extraction == Extraction::kBoxed || !out.empty()) return out;
  if (extraction == Extraction::kMarked) {
    add(marked_answer(completion));
    return out;
  }
  const std::string hashes = behind_hashes(completion);
  if (!hashes.empty()) {
    for (std::string& answer : leading_answers(hashes)) add(std::move(answer));
  }
  for (std::string& answer : leading_answers(behind_answer(completion))) add(std::move(answer));
  add(last_formula(completion));
  const std::string_view whole = parse::trim(completion);
  if (is_all_plain(whole)) add(std::string(whole));
  add(last_number(completion));
  if (whole.size() <= 60) add(std::string(whole));
  return out;
}

std::string extract_gold(std::string_view text) {
  std::string box = last_box(text);
  if (!box.empty()) return box;
  std::string hashes = behind_hashes(text);
  return hashes.empty() ? std::string(parse::trim(text)) : hashes;
}

}  // namespace mortise::math
