// JSON text: what is read can be written and read again, and is the same.
#include "foundation/formats/json.h"
#include "fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mortise;
  const auto value = parse_json(fuzz::as_text(data, size), "input");
  if (!value.ok()) {
    fuzz::require(!value.error().what.empty(), "an error says what");
    return 0;
  }
  const auto again = parse_json(dump_json(*value), "dumped");
  fuzz::require(again.ok() && *again == *value, "dump and parse give the same value");
  return 0;
}
