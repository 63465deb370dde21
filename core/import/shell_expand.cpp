// Expands variables, arrays and arithmetic, and splits words as the shell does.
#include "import/shell_expand.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "foundation/base/text.h"

namespace mortise {

namespace {

constexpr size_t kMostBytes = size_t{4} << 20;  // a variable that holds itself twice doubles with each line
constexpr int kMostNested = 32;

bool is_name(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0) return false;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  }
  return true;
}

size_t name_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && (std::isalnum(static_cast<unsigned char>(text[length])) != 0 || text[length] == '_'))
    ++length;
  return length;
}

// Every item is its own word, in quotes too.
bool is_list(const ShellPiece& piece) {
  return piece.kind == ShellPiece::Kind::kVariable && (piece.text == "@" || piece.text.ends_with("[@]"));
}

// Whole numbers with + - * / %, brackets and variables, as $((...)) has them. `value_of` gives a variable's text.
template <class ValueOf>
class Arithmetic {
 public:
  Arithmetic(std::string_view text, const ValueOf& value_of) : text_(text), value_of_(value_of) {}

  std::optional<int64_t> run() {
    const int64_t value = sum(0);
    skip();
    return failed_ || at_ < text_.size() ? std::nullopt : std::optional(value);
  }
  [[nodiscard]] const ShellWord& culprit() const { return culprit_; }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  int64_t fail() {
    failed_ = true;
    return 0;
  }
  // The result by reference: it is written while `overflows` is found.
  int64_t checked(bool overflows, const int64_t& value) { return overflows ? fail() : value; }

  int64_t sum(int depth) {
    int64_t value = product(depth);
    while (!failed_) {
      int64_t out = 0;
      if (take('+')) {
        value = checked(__builtin_add_overflow(value, product(depth), &out), out);
      } else if (take('-')) {
        value = checked(__builtin_sub_overflow(value, product(depth), &out), out);
      } else {
        break;
      }
    }
    return value;
  }
  int64_t product(int depth) {
    int64_t value = unit(depth);
    while (!failed_) {
      int64_t out = 0;
      if (take('*')) {
        value = checked(__builtin_mul_overflow(value, unit(depth), &out), out);
      } else if (take('/')) {
        const int64_t by = unit(depth);
        value = by == 0 || by == -1 ? checked(by == 0 || __builtin_sub_overflow(0, value, &out), out) : value / by;
      } else if (take('%')) {
        const int64_t by = unit(depth);
        value = by == 0 ? fail() : by == -1 ? 0 : value % by;
      } else {
        break;
      }
    }
    return value;
  }
  int64_t unit(int depth) {
    if (depth > kMostNested) return fail();
    if (take('-')) {
      int64_t out = 0;
      return checked(__builtin_sub_overflow(int64_t{0}, unit(depth + 1), &out), out);
    }
    if (take('(')) {
      const int64_t value = sum(depth + 1);
      return take(')') ? value : fail();
    }
    skip();
    const size_t length = name_length(text_.substr(at_));
    std::string word(text_.substr(at_, length));
    at_ += length;
    if (is_name(word)) {
      ShellWord value = value_of_(word);
      if (!value.unknown.empty()) {
        culprit_ = std::move(value);
        return fail();
      }
      word = std::string(trim(value.text));
    }
    const auto number = parse_i64(word);
    return number ? *number : fail();
  }

  std::string_view text_;
  const ValueOf& value_of_;
  size_t at_ = 0;
  bool failed_ = false;
  ShellWord culprit_;
};

}  // namespace

void ShellExpander::assign(const std::string& name, std::vector<ShellWord> values, bool appends) {
  Values& kept = variables_[name];
  if (!appends) {
    kept = std::move(values);
  } else if (values.size() == 1 && kept.size() == 1) {
    kept[0].text += values[0].text;
    if (kept[0].unknown.empty()) {
      kept[0].unknown = values[0].unknown;
      kept[0].name = values[0].name;
    }
  } else {
    for (ShellWord& value : values) kept.push_back(std::move(value));
  }
}

void ShellExpander::forget(const std::string& name, std::string why) {
  variables_[name] = {unknown(std::move(why), name)};
}

const ShellExpander::Values* ShellExpander::find(std::string_view name) const {
  if (const auto found = given_.find(name); found != given_.end()) return &found->second;
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

Result<> ShellExpander::count(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= kMostBytes) return {};
  return Error{ErrorKind::kConfig, "the variables of the script hold more than 4 MiB", where_, "write the values out"};
}

// The values of all pieces in one text, those of a list with spaces between them.
Result<ShellWord> ShellExpander::glued(const std::vector<ShellPiece>& pieces, int depth) {
  ShellWord out;
  for (const ShellPiece& piece : pieces) {
    const Values values = TRY(expand(piece, depth));
    for (size_t i = 0; i < values.size(); ++i) {
      out.text += (i > 0 ? " " : "") + values[i].text;
      if (out.unknown.empty() && !values[i].unknown.empty()) out.unknown = values[i].unknown, out.name = values[i].name;
    }
  }
  return out;
}

Result<ShellWord> ShellExpander::joined(std::string_view text, int depth) {
  if (depth > kMostNested) return unknown("variables are nested too deeply");
  const std::vector<ShellPiece> pieces = TRY(ShellLexer::pieces_of(text));
  return glued(pieces, depth + 1);
}

ShellWord ShellExpander::arithmetic(std::string_view text, int depth) {
  auto inside = joined(text, depth);  // $NAME in it
  if (!inside.ok()) return unknown(inside.error().what);
  if (!inside->unknown.empty()) return *std::move(inside);
  const auto value_of = [this](const std::string& name) {
    const Values* values = find(name);
    if (values == nullptr || values->empty()) return unknown("nothing sets the variable " + name, name);
    return values->front();
  };
  Arithmetic<decltype(value_of)> reader(inside->text, value_of);
  if (const auto value = reader.run()) return {std::to_string(*value), "", "", ""};
  if (!reader.culprit().unknown.empty()) return reader.culprit();
  return unknown(fmt::format("$(({})) is not read here: write its value", text));
}

Result<ShellExpander::Values> ShellExpander::with_default(const std::string& name, std::string_view rest, int depth) {
  const bool colon = rest.starts_with(':');
  if (colon) rest.remove_prefix(1);
  const char op = rest.empty() ? '\0' : rest.front();
  if (std::string_view("-=+?").find(op) == std::string_view::npos || op == '\0')
    return Values{
        unknown(fmt::format("${{{}{}{}}} is not read here: write its value", name, colon ? ":" : "", rest), name)};
  rest.remove_prefix(1);
  const Values* values = find(name);
  const bool has = values != nullptr && (!colon || !values->empty()) &&
                   (!colon || !values->front().text.empty() || !values->front().unknown.empty());
  if (op == '+') return has ? Values{TRY(joined(rest, depth))} : Values{};
  if (has) return *values;
  if (op == '?') return Values{unknown("nothing sets the variable " + name, name)};
  ShellWord fallback = TRY(joined(rest, depth));
  if (op == '=') assign(name, {fallback}, false);
  return Values{std::move(fallback)};
}

// The text after a '$', without its braces.
Result<ShellExpander::Values> ShellExpander::variable(const std::string& inside, int depth) {
  if (inside == "@" || inside == "*") {  // the script's own arguments: none unless given
    const Values* values = find(inside);
    return values == nullptr ? Values{} : *values;
  }
  std::string_view rest = inside;
  const bool counts = rest.starts_with('#') && rest.size() > 1;
  if (counts) rest.remove_prefix(1);
  const size_t length = std::max<size_t>(name_length(rest), rest.empty() ? 0 : 1);
  const std::string name(rest.substr(0, length));
  rest.remove_prefix(length);
  const bool all = rest == "[@]" || rest == "[*]";
  const Values* values = find(name);
  if (counts) {
    if (all && values != nullptr) return Values{{std::to_string(values->size()), "", "", ""}};
    return Values{unknown(fmt::format("${{{}}} is not read here: write its value", inside), name)};
  }
  if (rest.empty() || all || rest.starts_with('[')) {
    if (values == nullptr) {
      const bool argument = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) != 0;
      return Values{unknown(
          argument ? fmt::format("${} is an argument of the script", name) : "nothing sets the variable " + name,
          name)};
    }
    if (all) return *values;
    const auto index = rest.empty() ? std::optional<int64_t>(0) : parse_i64(rest.substr(1, rest.size() - 2));
    if (!index || *index < 0)
      return Values{unknown(fmt::format("${{{}}} is not read here: write its value", inside), name)};
    if (static_cast<size_t>(*index) >= values->size()) return Values{};
    return Values{(*values)[static_cast<size_t>(*index)]};
  }
  if (!is_name(name) && std::isdigit(static_cast<unsigned char>(name[0])) == 0)
    return Values{unknown(fmt::format("${{{}}} is not read here: write its value", inside))};
  return with_default(name, rest, depth);
}

Result<ShellExpander::Values> ShellExpander::expand(const ShellPiece& piece, int depth) {
  Values values;
  switch (piece.kind) {
    case ShellPiece::Kind::kText:
      values = {{piece.text, "", "", ""}};
      break;
    case ShellPiece::Kind::kVariable:
      // ${trainer.nnodes}: no shell has such a name, but OmegaConf does.
      if (piece.text.find('.') != std::string::npos && piece.text.find_first_of("-=+?/#%[ ") == std::string::npos)
        values = {{fmt::format("${{{}}}", piece.text), "", "", ""}};
      else
        values = TRY(variable(piece.text, depth));
      break;
    case ShellPiece::Kind::kArithmetic:
      values = {arithmetic(piece.text, depth)};
      break;
    case ShellPiece::Kind::kCommand:
      if (trim(piece.text) == "pwd") {
        values = TRY(variable("PWD", depth));
        break;
      }
      values = {unknown(fmt::format("it holds what the command `{}` prints", piece.text))};
      break;
  }
  for (const ShellWord& value : values) TRY(count(value.text.size() + 1));
  return values;
}

Result<ShellWord> ShellExpander::word(const std::vector<ShellPiece>& pieces, int64_t line) {
  ShellWord out = TRY(glued(pieces, 0));
  out.where = fmt::format("{}:{}", where_, line);
  return out;
}

Result<std::vector<ShellWord>> ShellExpander::words(const std::vector<ShellPiece>& pieces, int64_t line) {
  std::vector<ShellWord> out;
  bool open = false;  // does the next text continue the last word?
  const auto add = [&](const ShellWord& part, std::string_view text) {
    if (!open) out.push_back({"", fmt::format("{}:{}", where_, line), "", ""});
    open = true;
    out.back().text += text;
    if (out.back().unknown.empty()) out.back().unknown = part.unknown, out.back().name = part.name;
  };
  const bool has_list = std::any_of(pieces.begin(), pieces.end(), is_list);
  for (const ShellPiece& piece : pieces) {
    if (has_list && piece.kind == ShellPiece::Kind::kText && piece.text.empty())
      continue;  // "$@" may be no word at all
    const bool separate = is_list(piece);
    const bool splits = piece.kind != ShellPiece::Kind::kText && !piece.quoted;
    const Values values = TRY(expand(piece, 0));
    for (size_t i = 0; i < values.size(); ++i) {
      const ShellWord& value = values[i];
      if (i > 0 && (separate || splits)) open = false;
      if (i > 0 && !separate && !splits) add(value, " ");
      if (!splits || !value.unknown.empty()) {
        add(value, value.text);
        continue;
      }
      for (size_t at = 0; at < value.text.size();) {
        const bool blank = std::isspace(static_cast<unsigned char>(value.text[at])) != 0;
        size_t end = at;
        while (end < value.text.size() && (std::isspace(static_cast<unsigned char>(value.text[end])) != 0) == blank)
          ++end;
        if (blank)
          open = false;
        else
          add(value, std::string_view(value.text).substr(at, end - at));
        at = end;
      }
    }
  }
  return out;
}

}  // namespace mortise
