// Data files of the text formats, plain or compressed: the first byte chooses the name. Reading ends, skipping rows is
// reading them, and what follows a fault is read the same twice.
#include <array>
#include <string>

#include "foundation/formats/rows/row_reader.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"

namespace mortise {

namespace {

// A compressed input of 200 bytes can hold a row of a megabyte. The texts of rows are fuzz_jsonl's and fuzz_json's work.
constexpr size_t kParsedBytes = 2048;

// The number of rows, and whether the file could be read to its end.
std::pair<int64_t, bool> read_all(RowReader& reader) {
  int64_t num_rows = 0;
  while (true) {
    const auto row = reader.next();
    if (!row.ok()) return {num_rows, false};
    if (!row->has_value()) return {num_rows, true};
    ++num_rows;
    fuzz::require((*row)->number > 0, "a row has a place");
    if ((*row)->text.size() <= kParsedBytes) (void)reader.parse(**row);
  }
}

}  // namespace

void fuzz::run_one(const uint8_t* data, size_t size) {
  if (size == 0) return;
  constexpr std::array<const char*, 4> kNames = {"rows.jsonl", "rows.json", "rows.csv", "rows.txt"};
  const Path name = kNames[data[0] % kNames.size()];
  fuzz::MemoryEnv env;
  env.add(name.string(), std::string(fuzz::as_text(data + 1, size - 1)));
  auto reader = open_rows(env, name), again = open_rows(env, name);
  fuzz::require(reader.ok() == again.ok(), "opening is the same twice");
  if (!reader.ok() || !(*reader)->has_lines()) return;
  const auto [num_rows, is_whole] = read_all(**reader);
  const auto skipped = (*again)->skip(num_rows);
  fuzz::require(skipped.ok() && *skipped == num_rows, "skipping rows is reading them");
  const auto end = (*again)->next();
  fuzz::require(end.ok() == is_whole && (!end.ok() || !end->has_value()), "both end at the same place");
}

}  // namespace mortise
