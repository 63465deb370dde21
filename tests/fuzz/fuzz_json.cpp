// JSON text: an accepted text can be written and read again, is then equal, and nests no deeper than the limit.
#include <algorithm>

#include "foundation/formats/json.h"
#include "fuzz/fuzz_support.h"

namespace mortise {
namespace {

int depth_of(const Json& value) {
  int depth = 0;
  if (!value.is_structured()) return depth;
  for (const Json& item : value) depth = std::max(depth, depth_of(item));
  return depth + 1;
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  const auto value = parse_json(fuzz::as_text(data, size), "input");
  if (!value.ok()) {
    fuzz::require(!value.error().what.empty(), "an error says what");
    return;
  }
  fuzz::require(depth_of(*value) <= limits::kMaxJsonDepth, "nesting is bounded");
  const auto again = parse_json(dump_json(*value), "dumped");
  fuzz::require(again.ok() && *again == *value, "dump and parse give the same value");
}

}  // namespace mortise
