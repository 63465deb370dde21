// Replaces Unicode, LaTeX variants, spaces and styles by one spelling.
#include "normalise.h"

#include <algorithm>
#include <string>

#include "parse/text.h"
#include "scan.h"
#include "spellings.h"

namespace mortise::math {
namespace {

constexpr int kMaxNesting = 8;  // texts inside texts

bool is_text_command(std::string_view name) {
  return is_one_of(name, {"text", "textrm", "textnormal", "textit", "textbf", "textsf", "texttt", "emph", "mbox",
                          "hbox", "mathrm", "operatorname", "operatorname*"});
}
// Commands whose argument has no meaning.
bool is_dropped(std::string_view name) {
  return is_one_of(name, {"hspace", "vspace", "phantom", "hphantom", "tag", "label", "color", "mkern", "kern"});
}
bool is_lines(std::string_view name) {
  return is_one_of(name, {"aligned", "align", "align*", "gathered", "split", "equation", "equation*", "cases"});
}
bool is_matrix(std::string_view name) {
  return is_one_of(name, {"matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"});
}

std::size_t character_size(unsigned char lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

class Normaliser {
 public:
  std::string out;

  void scan(std::string_view text, int nesting) {
    std::size_t i = 0;
    while (i < text.size()) {
      const char c = text[i];
      if (c == '\\') {
        i = command(text, i + 1, nesting);
      } else if (static_cast<unsigned char>(c) >= 0x80) {
        i = character(text, i);
      } else if (text.compare(i, 3, "{,}") == 0) {
        i += 3;  // between thousands
      } else if (text.compare(i, 2, "**") == 0) {
        const bool power = !is_bold_ && is_power(text, i);
        if (power)
          out += '^';
        else
          is_bold_ = !is_bold_;  // Markdown
        i += 2;
      } else if (text.compare(i, 3, "+/-") == 0) {
        out += "\\pm ";
        i += 3;
      } else {
        if (is_space(c) || c == '~') {
          out += ' ';
        } else if (c != '$' && c != '"' && c != '`') {
          out += c;
        }
        ++i;
      }
    }
  }

 private:
  bool is_bold_ = false;

  // "x**2", not "**2** apples".
  static bool is_power(std::string_view text, std::size_t i) {
    const auto is_operand = [](char c) { return is_letter(c) || is_digit(c); };
    const char before = i > 0 ? text[i - 1] : ' ', behind = i + 2 < text.size() ? text[i + 2] : ' ';
    return (is_operand(before) || before == ')' || before == '}') &&
           (is_operand(behind) || behind == '(' || behind == '{' || behind == '-');
  }

  // The group that opens at or after text[i]; npos-sized if there is none.
  static bool group(std::string_view text, std::size_t i, std::string_view& content, std::size_t& end) {
    while (i < text.size() && is_space(text[i])) ++i;
    if (i >= text.size() || text[i] != '{') return false;
    int depth = 0;
    for (std::size_t k = i; k < text.size(); ++k) {
      if (text[k] == '\\') {
        ++k;
      } else if (text[k] == '{') {
        ++depth;
      } else if (text[k] == '}' && --depth == 0) {
        content = text.substr(i + 1, k - i - 1);
        end = k + 1;
        return true;
      }
    }
    return false;
  }

  std::size_t command(std::string_view text, std::size_t i, int nesting) {
    if (i >= text.size()) return i;
    std::size_t end = i + 1;
    if (is_letter(text[i])) {
      while (end < text.size() && is_letter(text[end])) ++end;
      if (end < text.size() && text[end] == '*') ++end;
    }
    std::string_view name = text.substr(i, end - i), content;
    if (name.size() > 1 && name.back() == '*' && name != "operatorname*") {
      name.remove_suffix(1);
      --end;
    }
    if (name == "\\" || name == "{" || name == "}") {
      out += '\\';
      out += name;
      return end;
    }
    if (is_text_command(name) && nesting < kMaxNesting && group(text, end, content, end)) {
      words(content, name, nesting);
      return end;
    }
    if (name == "begin" || name == "end") return environment(text, end, name, nesting);
    if (is_dropped(name)) {
      group(text, end, content, end);
      return end;
    }
    if (name == "mathbb" && group(text, end, content, end)) {
      out += content == "R" ? "\\reals " : "{" + std::string(content) + "}";
      return end;
    }
    const std::string_view* const known = command_spelling(name);
    if (known == nullptr) {
      out += '\\';
      out += name;
      if (is_letter(name[0])) out += ' ';
      return end;
    }
    out += *known;
    if (is_one_of(name, {"left", "right"}) && end < text.size() && text[end] == '.') ++end;
    return end;
  }

  // "\begin{aligned} x &= 1 \\ &= 2 \end{aligned}" is x = 1 = 2, other lines are several answers.
  bool lines(std::string_view text, std::size_t& end, std::string_view name, int nesting) {
    const std::string close = "\\end{" + std::string(name) + "}";
    const std::size_t stop = text.find(close, end);
    if (stop == kNone || nesting >= kMaxNesting) return false;
    const std::string_view body = text.substr(end, stop - end);
    if (name == "cases" && body.find('&') != kNone) return false;  // a function by parts
    std::string flat;
    int depth = 0;  // for texts with several lines
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (body.substr(i, 7) == "\\begin{") ++depth;
      if (body.substr(i, 5) == "\\end{") --depth;
      if (depth > 0) {
        flat += body[i];
      } else if (body.substr(i, 2) == "\\\\") {
        std::size_t next = i + 2;
        while (next < body.size() && (is_space(body[next]) || body[next] == '&')) ++next;
        if (next < body.size()) flat += body[next] == '=' ? ' ' : ',';
        i = next - 1;
      } else if (body[i] == '\\') {
        flat += body.substr(i++, 2);
      } else {
        flat += body[i] == '&' ? ' ' : body[i];
      }
    }
    scan(flat, nesting + 1);
    end = stop + close.size();
    return true;
  }

  std::size_t environment(std::string_view text, std::size_t end, std::string_view which, int nesting) {
    std::string_view name;
    if (!group(text, end, name, end)) return end;
    if (which == "begin" && is_lines(name) && lines(text, end, name, nesting)) return end;
    const bool matrix = is_matrix(name);
    std::string_view columns;
    if (name == "array" && which == "begin") group(text, end, columns, end);
    out += '\\';
    out += which;
    out += '{';
    out += matrix ? std::string_view("matrix") : name;  // a vmatrix is its determinant
    out += '}';
    return end;
  }

  // \text{...}: mathematics in it remains, "and" and "or" separate answers, and the rest is a quoted word.
  void words(std::string_view content, std::string_view command, int nesting) {
    const bool is_operator = command.substr(0, 12) == "operatorname";
    std::string plain;
    for (const char c : parse::trim(content))
      if (c != '$' && c != '"') plain += c == '~' ? ' ' : c;
    plain = std::string(parse::trim(plain));
    const bool letters = std::all_of(plain.begin(), plain.end(), is_letter);
    if (letters && (is_operator || is_one_of(plain, {"sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp",
                                                     "gcd", "lcm", "mod"}))) {
      out += '\\' + plain + ' ';
      return;
    }
    const bool lettered = plain.size() == 3 && plain.front() == '(' && plain.back() == ')';
    const bool mathematics = plain.find_first_of("0123456789\\") != std::string::npos;
    // One letter is a name, or a unit behind a number: 12\text{ m}, but 2\mathrm{i}.
    const std::size_t last = out.find_last_not_of(' ');
    const bool behind_number = last != std::string::npos && (is_digit(out[last]) || out[last] == '}');
    const bool is_name = plain.size() == 1 && (!behind_number || is_one_of(plain, {"e", "i"}));
    if (is_name || lettered || mathematics) {
      out += ' ';
      scan(plain, nesting + 1);
      out += ' ';
    } else if (is_one_of(plain, {"and", "or", ", and", ", or", "and,", "or,"})) {
      out += ',';
    } else if (!plain.empty()) {
      out += '"' + plain + '"';
    } else {
      out += ' ';
    }
  }

  std::size_t character(std::string_view text, std::size_t i) {
    const std::string_view one = text.substr(i, character_size(static_cast<unsigned char>(text[i])));
    const std::size_t end = i + one.size();
    if (one == "√" || one == "∛") return radical(text, end, one == "√" ? "\\sqrt" : "\\sqrt[3]");
    if (one.size() == 3 && one[0] == '\xEF' && (one[1] == '\xBC' || one[1] == '\xBD')) {  // full width
      const int code = (one[1] == '\xBC' ? 0 : 64) + (static_cast<unsigned char>(one[2]) & 0x3F);
      if (code >= 1 && code <= 94) {
        out += char(code + 0x20);
        return end;
      }
    }
    const std::string_view* const known = character_spelling(one);
    out += known == nullptr ? one : *known;
    return end;
  }

  // "√12" is the root of 12, where "\sqrt12" is that of 1.
  std::size_t radical(std::string_view text, std::size_t i, std::string_view command) {
    out += command;
    std::size_t end = i;
    while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
    if (end > i) {
      out += '{';
      out += text.substr(i, end - i);
      out += '}';
    }
    return end;
  }
};

}  // namespace

std::string normalise(std::string_view answer) {
  if (answer.size() > kMaxAnswer) return "";
  Normaliser n;
  n.scan(answer, 0);
  std::string_view s = n.out;
  const auto is_end = [](char c) { return is_space(c) || c == '.' || c == ',' || c == ';' || c == ':'; };
  while (!s.empty() && is_end(s.back()) && !(s.size() > 1 && s[s.size() - 2] == '\\')) s.remove_suffix(1);
  while (!s.empty() && (is_space(s.front()) || s.front() == ':' || s.front() == '=' || s.front() == ',')) {
    s.remove_prefix(1);
  }
  return std::string(s);
}

std::string without_spaces(std::string_view normalised) {
  std::string out;
  for (const char c : normalised)
    if (!is_space(c) && c != '"') out += c;
  return out;
}

}  // namespace mortise::math
