// See pattern_syntax.h.
#include "parse/pattern_syntax.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace mortise::parse {
namespace {

// Behind the character class that begins at `at`, with its '['.
std::size_t end_of_class(std::string_view source, std::size_t at) {
  std::size_t i = at + 1;
  if (i < source.size() && source[i] == '^') ++i;
  if (i < source.size() && source[i] == ']') ++i;  // the first one is literal
  while (i < source.size() && source[i] != ']') {
    const std::size_t posix_end = source.substr(i, 2) == "[:" ? source.find(":]", i + 2) : source.npos;
    if (posix_end != source.npos) {
      i = posix_end + 2;
    } else {
      i += source[i] == '\\' ? 2 : 1;
    }
  }
  return std::min(i + 1, source.size());
}

// "(*" at `at` begins one of the verbs that steer backtracking, not an option such as (*NO_JIT).
bool is_verb(std::string_view source, std::size_t at) {
  const std::string_view rest = source.substr(at + 2);
  const std::string_view name = rest.substr(0, std::min(rest.find_first_of(":)"), rest.size()));
  static constexpr std::string_view kVerbs[] = {"", "MARK", "ACCEPT", "FAIL", "F", "COMMIT", "PRUNE", "SKIP", "THEN"};
  return std::find(std::begin(kVerbs), std::end(kVerbs), name) != std::end(kVerbs);
}

}  // namespace

bool depends_on_the_start(std::string_view source) {
  for (std::size_t i = 0; i < source.size();) {
    if (source.substr(i, 2) == "\\G") return true;
    if (source.substr(i, 2) == "\\Q") {
      const std::size_t end = source.find("\\E", i + 2);
      if (end == source.npos) return false;
      i = end + 2;
    } else if (source[i] == '\\') {
      i += 2;
    } else if (source[i] == '[') {
      i = end_of_class(source, i);
    } else if (source.substr(i, 2) == "(*" && is_verb(source, i)) {
      return true;
    } else {
      ++i;
    }
  }
  return false;
}

}  // namespace mortise::parse
