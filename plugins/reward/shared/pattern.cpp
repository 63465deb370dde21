// Calls parse/pattern.h, and throws Failure on a fault.
#include "pattern.h"

#include <utility>

#include <mortise/cpp/plugin.hpp>

#include "parse/text.h"

namespace mortise {
namespace {

constexpr std::size_t kShownBytes = 200;

// Messages show patterns; a schema may have long ones.
std::string shown(const std::string& pattern) { return parse::quote(pattern, kShownBytes); }

parse::Pattern compile(const std::string& pattern, const parse::PatternOptions& options) {
  auto compiled = parse::Pattern::compile(pattern, options);
  if (!compiled) fail(MORTISE_INVALID_ARGUMENT, "pattern " + shown(pattern) + " " + compiled.fault().what);
  return *std::move(compiled);
}

}  // namespace

parse::PatternOptions Pattern::unicode() {
  parse::PatternOptions options;
  options.unicode_classes = true;
  return options;
}

Pattern::Pattern(const std::string& pattern, const parse::PatternOptions& options)
    : compiled_(compile(pattern, options)) {}

void Pattern::refuse(const parse::PatternFault& fault) const {
  fail(MORTISE_INVALID_ARGUMENT, "pattern " + shown(compiled_.source()) + " could not be matched: " + fault.what);
}

bool Pattern::found_in(std::string_view text) const {
  const auto found = compiled_.matches(text);
  if (!found) refuse(found.fault());
  return *found;
}

std::vector<std::string> Pattern::all(std::string_view text) const {
  std::vector<std::string> out;
  parse::PatternSearch search(compiled_, text);
  while (search.next()) out.emplace_back(search.group(1).in(text));
  if (search.fault()) refuse(*search.fault());
  return out;
}

std::string Pattern::replace_all(std::string_view text, std::string_view replacement) const {
  auto out = compiled_.replace_all(text, replacement);
  if (!out) refuse(out.fault());
  return *std::move(out);
}

std::string lower_case(std::string_view text) {
  auto out = parse::lower_case(text);
  if (out) return *std::move(out);
  if (out.fault().kind == parse::PatternFault::Kind::kText) return std::string(text);
  fail(MORTISE_INTERNAL, out.fault().what);
}

}  // namespace mortise
