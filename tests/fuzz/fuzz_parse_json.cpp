// The JSON reader of plugins, which takes the answers of web services and the lines of a replay file: what it accepts
// it also checks, nests no deeper than the limit, and survives writing.
#include <algorithm>

#include "fuzz/fuzz_support.h"
#include "parse/json.h"

namespace mortise {
namespace {

int depth_of(const nlohmann::json& value) {
  int depth = 0;
  if (!value.is_structured()) return depth;
  for (const nlohmann::json& item : value) depth = std::max(depth, depth_of(item));
  return depth + 1;
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  const std::string_view text = as_text(data, size);
  const auto value = parse::parse_json(text);
  require(value.ok() == !parse::check_json(text).has_value(), "reading and checking agree");
  if (!value.ok()) {
    require(!value.fault().what.empty() && value.fault().offset <= size, "a fault says what and where");
    return;
  }
  require(depth_of(*value) <= parse::kMaxJsonDepth, "nesting is bounded");
  const auto again = parse::parse_json(value->dump());
  require(again.ok() && *again == *value, "dump and parse give the same value");
}

}  // namespace mortise
