// Template text to tokens, as in Jinja 3.1 with trim_blocks and lstrip_blocks: it drops a newline after a block, and
// white space before a block that begins its line. "-" strips all white space on that side, "+" strips none.
// Cost: linear. Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "text/template/place.h"

namespace mortise::jinja {

enum class TokenType {
  kData,           // text between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,   // `text` is its value
  kInteger,  // `text` is the digits as written, without underscores
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type;
  std::string text;
  Place place;
};

// The error's `where` is "name:line:column".
Result<std::vector<Token>> tokenize(std::string_view source, std::string_view name);

// Python's str.isspace for one character.
bool is_python_space(char32_t code);

}  // namespace mortise::jinja
