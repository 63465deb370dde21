// Finds the function's `def` among the tokens, and reads its parameters.
#include "python_signature.h"

#include <algorithm>

#include "../../shared/python_tokens.h"
#include "parse/text.h"

namespace mortise {

namespace {

using Tokens = std::vector<std::string_view>;

class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source), tokens_(python_tokens(source)) {}

  // The functions at the top of the file, and whether their signatures are as written.
  struct Function {
    std::string_view name;
    size_t at = 0;  // where the bracket is
    bool is_plain = true;
  };
  [[nodiscard]] std::vector<Function> functions() const {
    std::vector<Function> found;
    bool decorated = false;
    for (size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (!begins_line(i)) continue;
      if (tokens_[i] == "@") decorated = true;
      const size_t def = tokens_[i] == "async" ? i + 1 : i;
      if (tokens_[def] == "def" && def + 2 < tokens_.size() && tokens_[def + 2] == "(") {
        for (Function& earlier : found) earlier.is_plain = earlier.is_plain && earlier.name != tokens_[def + 1];
        found.push_back({tokens_[def + 1], def + 2, !decorated});
      }
      if (tokens_[i + 1] == "=") {  // reward = partial(reward, ...)
        for (Function& earlier : found) earlier.is_plain = earlier.is_plain && earlier.name != tokens_[i];
      }
      if (tokens_[i] != "@") decorated = false;
    }
    return found;
  }

  [[nodiscard]] PythonSignature signature(const Function& function) const {
    PythonSignature out;
    out.name = function.name;
    int depth = 0;
    size_t first = function.at + 1;
    for (size_t i = function.at; i < tokens_.size(); ++i) {
      const std::string_view token = tokens_[i];
      if (token == "(" || token == "[" || token == "{") ++depth;
      const bool closes = token == ")" || token == "]" || token == "}";
      if ((depth == 1 && token == ",") || (closes && depth == 1)) {
        add_parameter(first, i, out);
        first = i + 1;
      }
      if (closes && --depth == 0) break;
    }
    return out;
  }

 private:
  [[nodiscard]] bool begins_line(size_t i) const {
    const auto at = static_cast<size_t>(tokens_[i].data() - source_.data());
    return tokens_[i] != "\n" && at < source_.size() && (at == 0 || source_[at - 1] == '\n');
  }

  void add_parameter(size_t first, size_t end, PythonSignature& out) const {
    if (first >= end || tokens_[first] == "*" || tokens_[first] == "/") return;  // *args, **kwargs, and the two marks
    int depth = 0;
    bool has_default = false;
    for (size_t i = first; i < end; ++i) {
      const std::string_view token = tokens_[i];
      depth += token == "(" || token == "[" || token == "{" ? 1 : token == ")" || token == "]" || token == "}" ? -1 : 0;
      has_default = has_default || (depth == 0 && token == "=");
    }
    out.names.emplace_back(tokens_[first]);
    if (!has_default) out.required.emplace_back(tokens_[first]);
  }

  std::string_view source_;
  Tokens tokens_;
};

}  // namespace

std::optional<PythonSignature> find_python_signature(std::string_view source, std::string_view function) {
  source = parse::without_byte_order_mark(source);
  const Reader reader(source);
  const std::vector<Reader::Function> found = reader.functions();
  const auto find_if = [&](const auto& wanted) { return std::find_if(found.begin(), found.end(), wanted); };
  const auto has = [&](std::string_view name) {
    return find_if([name](const auto& one) { return one.name == name; }) != found.end();
  };
  const auto named = [&](std::string_view name) {
    return find_if([name](const auto& one) { return one.name == name && one.is_plain; });
  };
  auto chosen = found.end();
  if (!function.empty()) {
    chosen = named(function);
  } else {
    const auto is_public = [](const auto& one) { return one.name.front() != '_'; };
    for (const std::string_view usual : {"compute_score", "reward"}) {
      if (chosen == found.end() && has(usual)) chosen = named(usual);
    }
    if (!has("compute_score") && !has("reward") && std::count_if(found.begin(), found.end(), is_public) == 1) {
      chosen = find_if(is_public);
      if (!chosen->is_plain) chosen = found.end();
    }
  }
  if (chosen == found.end()) return std::nullopt;
  return reader.signature(*chosen);
}

}  // namespace mortise
