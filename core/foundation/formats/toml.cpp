// See toml.h. The only place that catches toml++'s parse errors.
#define TOML_IMPLEMENTATION  // the one place where toml++'s code is compiled
#include "foundation/formats/toml.h"

#include "foundation/base/limits.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

std::string position_text(std::string_view file, const toml::source_position& position) {
  if (!position) return std::string(file);
  return std::string(file) + ":" + std::to_string(position.line) + ":" + std::to_string(position.column);
}

}  // namespace

Result<toml::table> parse_toml(std::string_view text, std::string_view where) {
  try {
    return toml::table(toml::parse(text, std::string(where)));
  } catch (const toml::parse_error& problem) {
    return Error{ErrorKind::kConfig, std::string(problem.description()), position_text(where, problem.source().begin),
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
