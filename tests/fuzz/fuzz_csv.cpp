// CSV: every row is an object with the columns of the header, or a fault; places count upwards; the reader ends.
#include <string>

#include "foundation/formats/rows/row_reader.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/memory_env.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  fuzz::MemoryEnv env;
  env.add("rows.csv", std::string(fuzz::as_text(data, size)));
  RowReaderOptions options;
  options.cells = {{"i", CellType::kInteger}, {"n", CellType::kNumber}, {"j", CellType::kJson}};
  auto reader = open_rows(env, "rows.csv", options);
  if (!reader.ok()) return;
  int64_t last_line = 0;
  size_t num_calls = 0, num_columns = 0;
  while (true) {
    fuzz::require(++num_calls <= size + 2, "the reader ends");
    const auto row = (*reader)->next();
    if (!row.ok() || !row->has_value()) break;
    fuzz::require((*row)->number > last_line, "lines count upwards");
    last_line = (*row)->number;
    if ((*row)->fault) continue;
    const auto value = (*reader)->parse(**row);
    if (!value.ok()) continue;  // a cell of JSON may be as deep as is allowed
    fuzz::require(value->is_object(), "a row is an object");
    if (num_columns == 0) num_columns = value->size();
    fuzz::require(value->size() == num_columns, "every row has the columns of the header");
  }
}

}  // namespace mortise
