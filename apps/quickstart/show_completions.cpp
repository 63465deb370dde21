// Prints the same validation prompts before and after training: completions and rewards side by side.
//
//   show_completions BEFORE.jsonl AFTER.jsonl [ROWS]
// Both files are those of trainer.validation_data_dir. Rows that were wrong before come first.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "foundation/base/text.h"
#include "foundation/formats/jsonl.h"

namespace mortise {

namespace {

struct Row {
  std::string prompt, completion;
  double reward = 0.0;
};

Result<std::vector<Row>> read_rows(const Path& path) {
  std::vector<Row> rows;
  JsonlReader reader = TRY(JsonlReader::open(default_env(), path));
  while (true) {
    const std::optional<JsonlRow> line = TRY(reader.next());
    if (!line) return rows;
    const std::string where = fmt::format("{}:{}", path.string(), line->line);
    const Json* score = json_find(line->value, "score");
    Row& row = rows.emplace_back();
    row.prompt = TRY(json_string(line->value, "input", where));
    row.completion = TRY(json_string(line->value, "output", where));
    if (score != nullptr && score->is_number()) row.reward = score->get<double>();
  }
}

Result<> show(const Path& before_path, const Path& after_path, size_t max_rows) {
  const std::vector<Row> before = TRY(read_rows(before_path));
  std::map<std::string, Row> after;
  for (Row& row : TRY(read_rows(after_path))) after.emplace(row.prompt, row);
  std::vector<const Row*> order;
  for (const Row& row : before) {
    if (after.contains(row.prompt)) order.push_back(&row);
  }
  std::stable_sort(order.begin(), order.end(), [](const Row* a, const Row* b) { return a->reward < b->reward; });
  std::printf("  %-10s  %-18s  %-18s\n", "prompt", "before (reward)", "after (reward)");
  for (size_t i = 0; i < std::min(max_rows, order.size()); ++i) {
    const Row& now = after[order[i]->prompt];
    std::printf("  %-10s  %-10s (%4.2f)   %-10s (%4.2f)\n", order[i]->prompt.c_str(), order[i]->completion.c_str(),
                order[i]->reward, now.completion.c_str(), now.reward);
  }
  return {};
}

}  // namespace

}  // namespace mortise

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::optional<int64_t> rows = 6;
  if (args.size() == 3) rows = mortise::parse_i64(args[2]);
  if (args.size() < 2 || args.size() > 3 || !rows || *rows < 0) {
    std::fprintf(stderr, "usage: show_completions BEFORE.jsonl AFTER.jsonl [ROWS]\n");
    return 2;
  }
  const auto result = mortise::show(args[0], args[1], static_cast<size_t>(*rows));
  if (result.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", result.error().to_string().c_str());
  return static_cast<int>(result.error().kind);
}
