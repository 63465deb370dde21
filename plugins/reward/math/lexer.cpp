// Reads numbers, names, commands and operators from a normalized answer.
#include "lexer.h"

#include <algorithm>

#include "parse/text.h"
#include "vocabulary.h"

namespace mortise::math {
namespace {

constexpr std::size_t kMaxDigits = 6000;
constexpr std::size_t kMaxTokens = 4000;
constexpr long kMaxScientific = 4000;  // exponent of 1.5e300

// Short words that are no products of letters.
bool is_short_word(std::string_view name) {
  return is_one_of(
      name, {"cm",  "mm",  "km",  "kg",  "mg",  "ml", "ft",  "mi",  "lb",  "lbs", "oz", "hr", "hrs", "min", "sec",
             "deg", "rad", "mph", "kmh", "yes", "no", "day", "cup", "men", "usd", "sq", "cu", "if",  "is"});
}

mpq_class decimal_number(const std::string& whole, const std::string& fraction, const std::string& repeating) {
  mpz_class digits((whole + fraction).empty() ? "0" : whole + fraction, 10), scale;
  mpz_ui_pow_ui(scale.get_mpz_t(), 10, fraction.size());
  mpq_class out(digits, scale);
  out.canonicalize();
  if (!repeating.empty()) {
    mpz_class nines;
    mpz_ui_pow_ui(nines.get_mpz_t(), 10, repeating.size());
    nines -= 1;
    mpq_class tail(mpz_class(repeating, 10), nines * scale);
    tail.canonicalize();
    out += tail;
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    while (true) {
      const std::size_t from = i_;
      while (i_ < text_.size() && text_[i_] == ' ') ++i_;
      if (i_ >= text_.size()) break;
      if (out_.size() > kMaxTokens) throw Unreadable("too long");
      const std::size_t before = out_.size();
      one();
      if (out_.size() > before) out_[before].after_space = i_ > from && text_[from] == ' ';
    }
    out_.emplace_back();
    return std::move(out_);
  }

 private:
  [[nodiscard]] char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  [[nodiscard]] std::string digits_at(std::size_t i) const {
    std::string out;
    while (is_digit(at(i))) out += text_[i++];
    return out;
  }

  void one() {
    const char c = text_[i_];
    if (is_digit(c) || (c == '.' && is_digit(at(i_ + 1)))) return number();
    if (is_letter(c)) return letters();
    if (c == '\\') return command();
    if (c == '"') return quoted();
    for (const std::string_view two : {"<=", ">=", "!="}) {
      if (text_.substr(i_, 2) == two) return sign(std::string(two));
    }
    if (std::string_view("+-*/^_!%()[]{}|,;:=<>&'").find(c) == std::string_view::npos)
      throw Unreadable(std::string("the character ") + c);
    if (c == '(' || c == '[') ++depth_;
    if (c == ')' || c == ']') --depth_;
    sign(std::string(1, c));
  }

  void sign(std::string text) {
    i_ += text.size();
    push(TokenKind::kSign, std::move(text));
  }
  void push(TokenKind kind, std::string text) {
    Token t;
    t.kind = kind;
    t.text = std::move(text);
    out_.push_back(std::move(t));
  }

  // "1,234,567" and "1 234 567"; inside brackets a comma separates.
  std::string whole_part() {
    std::string whole = digits_at(i_);
    i_ += whole.size();
    if (depth_ > 0 || whole.empty() || whole.size() > 3) return whole;
    const char separator = at(i_);
    if (separator != ',' && separator != ' ') return whole;
    std::string joined = whole;
    std::size_t end = i_;
    while (at(end) == separator) {
      const std::string next = digits_at(end + 1);
      if (next.empty()) break;
      if (next.size() != 3) return whole;
      joined += next;
      end += 4;
      if (joined.size() > kMaxDigits) throw Unreadable("too many digits");
    }
    // "1 234/5" is a mixed number, if anything.
    if (separator == ' ' && end != i_ && at(end) == '/') return whole;
    i_ = end;
    return joined;
  }

  void number() {
    const std::size_t from = i_;
    const std::string whole = whole_part();
    std::string fraction, repeating;
    bool decimal = false;
    if (at(i_) == '.' && (is_digit(at(i_ + 1)) || overline_at(i_ + 1) > 0)) {
      decimal = true;
      fraction = digits_at(i_ + 1);
      i_ += 1 + fraction.size();
      repeating = overlined();
    } else if (at(i_) == '.') {
      ++i_;
    }
    if (whole.size() + fraction.size() + repeating.size() > kMaxDigits) throw Unreadable("too many digits");
    Token t;
    t.kind = TokenKind::kNumber;
    t.number = decimal_number(whole, fraction, repeating);
    t.decimal = decimal && repeating.empty();
    scientific(t);
    t.text = std::string(text_.substr(from, i_ - from));
    out_.push_back(std::move(t));
  }

  // The length of the command over repeating decimals, if one is here.
  [[nodiscard]] std::size_t overline_at(std::size_t i) const {
    for (const std::string_view name : {"\\overline", "\\bar", "\\dot"}) {
      if (text_.substr(i, name.size()) == name && !is_letter(at(i + name.size()))) return name.size();
    }
    return 0;
  }

  // \overline{3} behind a point.
  std::string overlined() {
    const std::size_t command = overline_at(i_);
    if (command == 0) return "";
    std::size_t k = i_ + command;
    while (at(k) == ' ') ++k;
    const std::string digits = at(k) == '{' ? digits_at(k + 1) : "";
    if (digits.empty() || at(k + 1 + digits.size()) != '}') throw Unreadable("an overlined part");
    i_ = k + 2 + digits.size();
    return digits;
  }

  // 1.5e-3
  void scientific(Token& t) {
    if (at(i_) != 'e' && at(i_) != 'E') return;
    const bool is_signed = at(i_ + 1) == '-' || at(i_ + 1) == '+';
    const std::string digits = digits_at(i_ + 1 + (is_signed ? 1 : 0));
    if (digits.empty() || digits.size() > 5 || std::stol(digits) > kMaxScientific) return;
    mpz_class scale;
    mpz_ui_pow_ui(scale.get_mpz_t(), 10, static_cast<unsigned long>(std::stol(digits)));
    t.number = at(i_ + 1) == '-' ? mpq_class(t.number / scale) : mpq_class(t.number * scale);
    i_ += 1 + (is_signed ? 1 : 0) + digits.size();
  }

  void letters() {
    std::size_t end = i_;
    while (is_letter(at(end))) ++end;
    const std::string run(text_.substr(i_, end - i_));
    std::string low = run;
    std::transform(low.begin(), low.end(), low.begin(), lower);
    i_ = end;
    const bool behind_number = !out_.empty() && out_.back().kind == TokenKind::kNumber;
    if (behind_number && low == "to") return push(TokenKind::kSign, ":");
    if (behind_number && run == "x" && is_times()) return push(TokenKind::kSign, "*");
    const bool joined = behind_number && text_[end - run.size() - 1] != ' ';
    if (joined && is_one_of(low, {"st", "nd", "rd", "th"})) return push(TokenKind::kWord, low);
    if (is_function(low) || low == "sqrt") return push(TokenKind::kCommand, low);
    const bool of_several = is_of_several(low) && at(i_) == '(';
    if (of_several || low == "mod") return push(TokenKind::kCommand, low);
    if (low == "pi") return push(TokenKind::kCommand, "pi");
    if (low == "inf" || low == "infinity" || low == "oo") return push(TokenKind::kCommand, "infty");
    if (low == "and" || low == "or") return push(TokenKind::kSign, ",");
    if (run.size() >= 4 || is_short_word(low)) return push(TokenKind::kWord, low);
    for (const char c : run) push(TokenKind::kLetter, std::string(1, c));
  }

  // "1.5 x 10^3": the letter after text_[i_] is alone between numbers.
  [[nodiscard]] bool is_times() const {
    return i_ >= 2 && text_[i_ - 2] == ' ' && at(i_) == ' ' && is_digit(at(i_ + 1));
  }

  void command() {
    std::size_t end = i_ + 1;
    while (is_letter(at(end))) ++end;
    if (end == i_ + 1) {  // \{ \} \\ and what the normaliser did not know
      const char c = at(end);
      if (c != '{' && c != '}' && c != '\\') throw Unreadable(std::string("\\") + c);
      depth_ += c == '{' ? 1 : c == '}' ? -1 : 0;
      return sign(std::string("\\") + c);
    }
    push(TokenKind::kCommand, std::string(text_.substr(i_ + 1, end - i_ - 1)));
    i_ = end;
  }

  void quoted() {
    const std::size_t end = text_.find('"', i_ + 1);
    if (end == std::string_view::npos) throw Unreadable("an open quote");
    std::string word;
    for (const char c : text_.substr(i_ + 1, end - i_ - 1)) word += lower(c);
    i_ = end + 1;
    if (parse::trim(word) == "to" && !out_.empty() && out_.back().kind == TokenKind::kNumber)
      return push(TokenKind::kSign, ":");
    push(TokenKind::kWord, std::move(word));
  }

  std::string_view text_;
  std::size_t i_ = 0;
  int depth_ = 0;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokens(std::string_view normalised) { return Lexer(normalised).run(); }

}  // namespace mortise::math
