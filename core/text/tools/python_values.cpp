// Reads a list of Python calls, one character after the other.
#include "text/tools/python_values.h"

#include <fmt/core.h>

#include <cctype>
#include <optional>

#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr int kMaxDepth = 64;

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_in_word(char c) { return begins_word(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; }

class PythonCalls {
 public:
  explicit PythonCalls(std::string_view text) : text_(text) {}

  std::vector<ToolCall> read() {
    std::vector<ToolCall> calls;
    if (!take('[')) return calls;
    do {
      ToolCall call;
      call.name = word(/*dots=*/true);
      if (call.name.empty() || !take('(')) return note_fault(std::move(calls), std::move(call));
      if (!arguments(call.arguments)) return note_fault(std::move(calls), std::move(call));
      calls.push_back(std::move(call));
    } while (take(','));
    if (!take(']')) return note_fault(std::move(calls), {});
    return calls;
  }

 private:
  // A text that starts with a bracket but holds no call is an ordinary answer.
  std::vector<ToolCall> note_fault(std::vector<ToolCall> calls, ToolCall call) const {
    if (calls.empty() && (call.name.empty() || at_ >= text_.size() || !seen_bracket_)) return {};
    call.fault = fmt::format("the call cannot be read at character {}: write [name(key=value)]", at_);
    calls.push_back(std::move(call));
    return calls;
  }
  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    if (c == '(') seen_bracket_ = true;
    return true;
  }
  std::string word(bool dots) {
    skip_spaces();
    const size_t begin = at_;
    if (at_ < text_.size() && begins_word(text_[at_])) {
      while (at_ < text_.size() && (is_in_word(text_[at_]) || (dots && text_[at_] == '.'))) ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool arguments(Json& out) {
    if (take(')')) return true;
    do {
      if (take(')')) return true;  // after a last comma
      const std::string key = word(false);
      if (key.empty() || !take('=')) return false;
      auto read = value(0);
      if (!read) return false;
      out[key] = *std::move(read);
    } while (take(','));
    return take(')');
  }
  std::optional<Json> value(int depth) {
    skip_spaces();
    if (at_ >= text_.size() || depth > kMaxDepth) return std::nullopt;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return quoted(c);
    if (c == '[' || c == '(') return list(c == '[' ? ']' : ')', depth);
    if (c == '{') return dict(depth);
    if (begins_word(c)) return constant();
    return number();
  }
  std::optional<Json> constant() {
    const std::string name = word(false);
    if (name == "True" || name == "true") return Json(true);
    if (name == "False" || name == "false") return Json(false);
    if (name == "None" || name == "null") return Json(nullptr);
    return std::nullopt;
  }
  std::optional<Json> number() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '+' ||
                                  text_[at_] == '-' || text_[at_] == '.'))
      ++at_;
    const std::string_view digits = text_.substr(begin, at_ - begin);
    if (const auto whole = parse_i64(digits)) return Json(*whole);
    if (const auto real = parse_f64(digits)) return Json(*real);
    return std::nullopt;
  }
  std::optional<Json> list(char end, int depth) {
    ++at_;
    Json out = Json::array();
    if (take(end)) return out;
    do {
      if (take(end)) return out;
      auto item = value(depth + 1);
      if (!item) return std::nullopt;
      out.push_back(*std::move(item));
    } while (take(','));
    return take(end) ? std::optional<Json>(std::move(out)) : std::nullopt;
  }
  std::optional<Json> dict(int depth) {
    ++at_;
    Json out = Json::object();
    if (take('}')) return out;
    do {
      if (take('}')) return out;
      const auto key = value(depth + 1);
      if (!key || !key->is_string() || !take(':')) return std::nullopt;
      auto item = value(depth + 1);
      if (!item) return std::nullopt;
      out[key->get<std::string>()] = *std::move(item);
    } while (take(','));
    return take('}') ? std::optional<Json>(std::move(out)) : std::nullopt;
  }
  std::optional<Json> quoted(char quote) {
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        const size_t place = std::string_view("ntr0").find(c);
        if (place != std::string_view::npos) c = "\n\t\r\0"[place];
      }
      out += c;
    }
    if (at_ >= text_.size()) return std::nullopt;
    ++at_;
    return Json(std::move(out));
  }

  std::string_view text_;
  size_t at_ = 0;
  bool seen_bracket_ = false;
};

}  // namespace

std::vector<ToolCall> read_python_calls(std::string_view text) { return PythonCalls(text).read(); }

}  // namespace mortise
