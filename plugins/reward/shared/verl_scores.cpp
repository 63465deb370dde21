// The scorers gsm8k, MATH, DAPO and searchR1, with verl's cleaning of strings.
#include "verl_scores.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "parse/text.h"
#include "pattern.h"

namespace mortise::verl {
namespace {

constexpr std::size_t kClip = 300;  // characters at the end that are looked at
constexpr std::size_t kBoxClip = 100;

std::string_view last_characters(std::string_view text, std::size_t count) {
  std::size_t at = text.size();
  while (at > 0 && count > 0) {
    --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    --count;
  }
  return text.substr(at);
}

// The first character and the rest.
std::size_t first_size(std::string_view text) {
  std::size_t size = 1;
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
  return size;
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = 0;
  std::string out;
  for (std::size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at).append(to);
  }
  text = out.append(text, at, std::string::npos);
}

std::vector<std::string> split(const std::string& text, std::string_view by) {
  std::vector<std::string> out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(by, at)) != std::string::npos; at = found + by.size()) {
    out.push_back(text.substr(at, found - at));
  }
  out.push_back(text.substr(at));
  return out;
}

// From the brace-matched command at `at`; nothing where it is not closed.
std::optional<std::string> closed_from(std::string_view text, std::size_t at) {
  int open = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    if (text[i] == '{') ++open;
    if (text[i] == '}' && --open == 0) return std::string(text.substr(at, i + 1 - at));
  }
  return {};
}

// The content of the last box, by the rules of MATH.
std::optional<std::string> math_box(const std::string& text) {
  if (text.find("\\boxed ") != std::string::npos) return split(split(text, "\\boxed ").back(), "$")[0];
  std::size_t at = text.rfind("\\boxed");
  if (at == std::string::npos) at = text.rfind("\\fbox");
  if (at == std::string::npos) return {};
  const auto whole = closed_from(text, at);
  constexpr std::string_view kLeft = "\\boxed{";
  // \fbox is found but never read: verl's remove_boxed refuses it.
  if (!whole || whole->compare(0, kLeft.size(), kLeft) != 0) return {};
  return whole->substr(kLeft.size(), whole->size() - kLeft.size() - 1);
}

// "\frac12" with braces; nothing where a piece is empty.
std::optional<std::string> with_fraction_braces(const std::string& text) {
  const std::vector<std::string> pieces = split(text, "\\frac");
  std::string out = pieces[0];
  for (std::size_t k = 1; k < pieces.size(); ++k) {
    const std::string& piece = pieces[k];
    out += "\\frac";
    if (piece.empty()) return {};
    if (piece[0] == '{') {
      out += piece;
      continue;
    }
    const std::size_t a = first_size(piece);
    if (piece.size() == a) return text;
    const std::size_t b = first_size(std::string_view(piece).substr(a));
    const std::string above = piece.substr(0, a), below = piece.substr(a, b), rest = piece.substr(a + b);
    out += "{" + above + "}";
    out += below == "{" ? below : "{" + below + "}";
    out += rest;
  }
  return out;
}

std::optional<std::string> with_root_braces(const std::string& text) {
  const std::vector<std::string> pieces = split(text, "\\sqrt");
  std::string out = pieces[0];
  for (std::size_t k = 1; k < pieces.size(); ++k) {
    if (pieces[k].empty()) return {};
    const std::size_t a = first_size(pieces[k]);
    out += "\\sqrt";
    out += pieces[k][0] == '{' ? pieces[k] : "{" + pieces[k].substr(0, a) + "}" + pieces[k].substr(a);
  }
  return out;
}

bool is_plain_integer(std::string_view s) {
  if (s == "0") return true;
  if (!s.empty() && s[0] == '-') s.remove_prefix(1);
  return !s.empty() && s[0] != '0' && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::optional<std::string> math_cleaned(std::string text) {
  for (const char* gone : {"\n", "\\!"}) replace(text, gone, "");
  replace(text, "\\\\", "\\");
  for (const char* fraction : {"tfrac", "dfrac"}) replace(text, fraction, "frac");
  for (const char* gone : {"\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"}) replace(text, gone, "");
  const std::vector<std::string> units = split(text, "\\text{ ");
  if (units.size() > 2) return {};
  text = units[0];
  for (const char* gone : {"\\\\%", "\\%"}) replace(text, gone, "");
  replace(text, " .", " 0.");
  replace(text, "{.", "{0.");
  if (text.empty()) return text;
  if (text[0] == '.') text = "0" + text;
  const std::vector<std::string> sides = split(text, "=");
  const auto length = [](const std::string& s) {
    return std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  };
  if (sides.size() == 2 && length(sides[0]) <= 2) text = sides[1];
  auto rooted = with_root_braces(text);
  if (!rooted) return {};
  replace(*rooted, " ", "");
  auto fractions = with_fraction_braces(*rooted);
  if (!fractions) return {};
  text = *fractions == "0.5" ? "\\frac{1}{2}" : *fractions;
  const std::vector<std::string> slash = split(text, "/");
  if (slash.size() == 2 && is_plain_integer(slash[0]) && is_plain_integer(slash[1]))
    text = "\\frac{" + slash[0] + "}{" + slash[1] + "}";
  return text;
}

namespace {

std::string minerva_cleaned(const std::string& answer) {
  std::string text = split(answer, "=").back();
  constexpr std::pair<const char*, const char*> kSubstitutions[] = {
      {"an ", ""}, {"a ", ""},       {".$", "$"},           {"\\$", ""},          {"\\ ", ""},
      {" ", ""},   {"mbox", "text"}, {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"}};
  for (const auto& [from, to] : kSubstitutions) replace(text, from, to);
  for (const char* gone : {"square",     "ways",       "integers",  "dollars",      "mph",
                           "inches",     "hours",      "km",        "units",        "\\ldots",
                           "sue",        "points",     "feet",      "minutes",      "digits",
                           "cents",      "degrees",    "cm",        "gm",           "pounds",
                           "meters",     "meals",      "edges",     "students",     "childrentickets",
                           "multiples",  "\\text{s}",  "\\text{.}", "\\text{\ns}",  "\\text{}^2",
                           "\\text{}^3", "\\text{\n}", "\\text{}",  "\\mathrm{th}", "^\\circ",
                           "^{\\circ}",  "\\;",        ",\\!",      "{,}",          "\"",
                           "\\dots"}) {
    replace(text, gone, "");
  }
  static const Pattern dollars(R"((.*?)(\$)(.*?)(\$)(.*))"), word(R"((\\text\{)(.*?)(\}))"),
      bold(R"((\\textbf\{)(.*?)(\}))"), line(R"((\\overline\{)(.*?)(\}))"), box(R"((\\boxed\{)(.*)(\}))"),
      fraction(R"((frac)([^{])(.))"), root(R"((sqrt)([^{]))");
  text = dollars.replace_all(text, "$$$3$$");
  for (const Pattern* inner : {&word, &bold, &line, &box}) text = inner->replace_all(text, "$2");
  text = fraction.replace_all(text, "frac{$2}{$3}");
  text = root.replace_all(text, "sqrt{$2}");
  replace(text, "$", "");
  std::string digits = text;
  replace(digits, ",", "");
  if (!digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
    text = digits;
  return std::string(parse::trim(text));
}

std::size_t count_of(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) ++count;
  return count;
}

// As SQuAD's scorer does it: lower case, no ASCII punctuation, no articles, single spaces. Case and spaces are
// Python's.
std::string question_cleaned(const std::string& answer) {
  static const Pattern articles(R"(\b(a|an|the)\b)"), spaces(R"([\s\x1c-\x1f\x{85}]+)");
  std::string text = lower_case(answer);
  replace(text, "İ", "i\u0307");
  const auto is_punctuation = [](char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  };
  text.erase(std::remove_if(text.begin(), text.end(), is_punctuation), text.end());
  return std::string(parse::trim(spaces.replace_all(articles.replace_all(text, " "), " ")));
}

std::optional<std::string> dapo_box(std::string_view text) {
  const std::string_view tail = last_characters(text, kBoxClip);
  const std::size_t at = tail.rfind("\\boxed{");
  const auto whole = at == std::string_view::npos ? std::optional<std::string>() : closed_from(tail, at);
  if (!whole) return {};
  return whole->substr(7, whole->size() - 8);
}

}  // namespace

std::string gsm8k_answer(std::string_view solution, bool flexible) {
  static const Pattern strict("#### (\\-?[0-9\\.\\,]+)"), number("(\\-?[0-9\\.\\,]+)");
  std::vector<std::string> found = (flexible ? number : strict).all(last_characters(solution, kClip));
  if (found.empty()) return "";
  if (!flexible) {
    replace(found.back(), ",", "");
    return found.back();
  }
  const auto last = std::find_if(found.rbegin(), found.rend(), [](const std::string& s) { return s != "."; });
  return last == found.rend() ? found.front() : *last;
}

bool math_is_right(std::string_view solution, std::string_view truth) {
  const auto answer = math_box(std::string(solution));
  if (!answer) return false;
  const auto a = math_cleaned(*answer), b = math_cleaned(std::string(truth));
  return a && b ? *a == *b : *answer == truth;
}

std::string math_pred(std::string_view solution) {
  const auto answer = math_box(std::string(solution));
  return answer ? math_cleaned(*answer).value_or(*answer) : "";
}

DapoScore dapo_score(std::string_view solution, std::string_view truth, DapoBox use) {
  const auto cleaned = [&](const std::string& answer) {
    std::string pred = minerva_cleaned(answer);
    const bool right = pred == minerva_cleaned(std::string(truth));
    return DapoScore{right, std::move(pred)};
  };
  const std::string_view tail = last_characters(solution, kClip);
  static const Pattern pattern(R"((?i)Answer\s*:\s*([^\n]+))");
  const std::vector<std::string> found = use == DapoBox::kAlone ? std::vector<std::string>() : pattern.all(tail);
  if (!found.empty()) return cleaned(found.back());
  if (use != DapoBox::kNever) {
    const auto box = dapo_box(tail);
    if (box || use == DapoBox::kAlone) return {box && *box == truth, box.value_or("")};
  }
  return cleaned("[INVALID]");
}

std::optional<SearchR1Match> search_r1_match(std::string_view solution, const std::vector<std::string>& truths,
                                             bool part) {
  constexpr std::string_view kOpen = "<answer>", kClose = "</answer>";
  constexpr std::size_t kManyTags = 10;
  std::optional<std::string> found;
  for (std::size_t at = 0; (at = solution.find(kOpen, at)) != std::string_view::npos;) {
    const std::size_t begin = at + kOpen.size(), end = solution.find(kClose, begin);
    if (end == std::string_view::npos) break;
    found = std::string(solution.substr(begin, end - begin));
    at = end + kClose.size();
  }
  if (!found) return {};
  SearchR1Match match;
  match.many_tags = count_of(solution, kOpen) > kManyTags || count_of(solution, kClose) > kManyTags;
  const std::string answer = question_cleaned(*found);
  match.right = std::any_of(truths.begin(), truths.end(), [&](const std::string& truth) {
    const std::string wanted = question_cleaned(truth);
    return part ? answer.find(wanted) != std::string::npos : answer == wanted;
  });
  return match;
}

}  // namespace mortise::verl
