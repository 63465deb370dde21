// JSONL: the reader continues after a bad line, always moves forward, and ends.
#include <vector>

#include "foundation/formats/jsonl.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env;
  env.add("rows.jsonl", std::string(fuzz::as_text(data, size)));
  auto reader = JsonlReader::open(env, "rows.jsonl");
  if (!reader.ok()) return;
  int64_t last_line = 0;
  size_t num_calls = 0;
  while (true) {
    fuzz::require(++num_calls <= size + 2, "the reader ends");
    const auto row = reader->next();
    if (!row.ok()) continue;
    if (!row->has_value()) break;
    fuzz::require((*row)->line > last_line, "lines count upwards");
    fuzz::require((*row)->offset + (*row)->text.size() <= size, "a row lies in the file");
    last_line = (*row)->line;
  }
}

}  // namespace mortise
