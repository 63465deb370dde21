// See toml.h. The only place that catches toml++'s parse errors.
//
// toml++ 3.3 asserts (and with NDEBUG assumes, which is undefined behaviour) that a key starts well, and "[=]" does
// not. In this file, where its parser is compiled, a broken assertion is an exception instead.
#undef NDEBUG
#include <fmt/core.h>
#include <stdexcept>
namespace mortise {
[[noreturn]] static void broken_assertion() { throw std::logic_error("malformed key or table header"); }
}  // namespace mortise
#define TOML_ASSERT(condition) ((condition) ? void() : ::mortise::broken_assertion())
#define TOML_IMPLEMENTATION  // the one place where toml++'s code is compiled
#include "foundation/formats/toml.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

std::string position_text(std::string_view file, const toml::source_position& position) {
  if (!position) return std::string(file);
  return fmt::format("{}:{}:{}", file, position.line, position.column);
}

// A dotted key makes a table for each part, and toml++ frees tables by recursion: one of 100,000 parts ends the stack.
constexpr int kMaxKeyParts = 256;

// The first line with a dotted key longer than that. Keys end at the line and at any of ",=[]{}" outside quotes.
std::optional<int64_t> find_overlong_key(std::string_view text) {
  int64_t line = 1;
  int num_dots = 0;
  char quote = 0;
  bool in_comment = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (character == '\n') {
      ++line;
      num_dots = 0;
      quote = 0;
      in_comment = false;
    } else if (in_comment) {
      continue;
    } else if (character == '.') {
      if (++num_dots >= kMaxKeyParts && quote == 0) return line;
    } else if (quote != 0) {
      if (character == '\\' && quote == '"') ++i;
      if (character == quote) quote = 0;
    } else if (character == '"' || character == '\'') {
      quote = character;
    } else if (character == '#') {
      in_comment = true;
    } else if (std::string_view(",=[]{}").find(character) != std::string_view::npos) {
      num_dots = 0;
    }
  }
  return std::nullopt;
}

// Does toml++ fail an assertion within the first `size` bytes?
bool breaks_assertion(std::string_view text, size_t size) {
  try {
    (void)toml::parse(text.substr(0, size));
  } catch (const std::logic_error&) {
    return true;
  } catch (const std::exception&) {
  }
  return false;
}

// The line that fails an assertion, which has no position of its own. The parser only moves forward, so the shortest
// run of lines that still fails ends there. O(size * log lines), after a failure only.
int64_t find_breaking_line(std::string_view text) {
  std::vector<size_t> ends;  // where each line ends
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) ends.push_back(at + 1);
  ends.push_back(text.size());
  const auto first =
      std::partition_point(ends.begin(), ends.end(), [text](size_t end) { return !breaks_assertion(text, end); });
  return std::min<int64_t>(first - ends.begin(), static_cast<int64_t>(ends.size()) - 1) + 1;
}

// What the parser says. A key or table that is there twice is said in plain words.
Error parse_fault(const toml::parse_error& problem, std::string_view where) {
  Error fault{ErrorKind::kConfig, std::string(problem.description()), position_text(where, problem.source().begin),
              "correct the TOML there"};
  constexpr std::string_view kTwice = "cannot redefine existing ";  // then: integer 'n', or table 'actor'
  const size_t at = fault.what.find(kTwice);
  if (at == std::string::npos) return fault;
  const std::string_view rest = std::string_view(fault.what).substr(at + kTwice.size());
  const size_t begin = rest.find('\''), end = rest.find('\'', begin + 1);
  if (begin == std::string_view::npos || end == std::string_view::npos) return fault;
  const bool is_table = rest.starts_with("table");
  fault.next = is_table ? "put its keys under one header" : "delete one of the two";
  fault.what = fmt::format("the {} {} is there twice", is_table ? "table" : "key", rest.substr(begin, end + 1 - begin));
  return fault;
}

}  // namespace

Result<toml::table> parse_toml(std::string_view text, std::string_view where) {
  if (const std::optional<int64_t> line = find_overlong_key(text)) {
    return Error{ErrorKind::kConfig, fmt::format("a key has more than {} parts", kMaxKeyParts),
                 fmt::format("{}:{}", where, *line), "shorten it"};
  }
  try {
    return toml::table(toml::parse(text, std::string(where)));
  } catch (const toml::parse_error& problem) {
    return parse_fault(problem, where);
  } catch (const std::logic_error& problem) {
    return Error{ErrorKind::kConfig, problem.what(), fmt::format("{}:{}", where, find_breaking_line(text)),
                 "correct the TOML there"};
  } catch (const std::exception& problem) {
    return Error{ErrorKind::kConfig, problem.what(), std::string(where), "correct the TOML"};
  }
}

Result<toml::table> read_toml_file(Env& env, const Path& path) {
  Result<std::string> text = env.read_file(path, limits::kMaxConfigFileBytes);
  if (!text.ok()) {
    Error error = std::move(text).error();
    error.kind = ErrorKind::kConfig;  // a config that cannot be read is a mistake in the command line
    return error;
  }
  return parse_toml(*text, path.string());
}

std::string toml_where(std::string_view file, const toml::node& node) {
  return position_text(file, node.source().begin);
}

}  // namespace mortise
