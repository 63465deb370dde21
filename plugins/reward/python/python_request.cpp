// Writes the rows of a call as JSON, in TRL's or verl's form.
#include "python_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../../shared/columns.h"
#include "../shared/row_json.h"

namespace mortise {
namespace {

// "name":[cell of each row]
template <class Cell>
void add_list(std::string& out, std::string_view name, const std::vector<std::size_t>& indices, const Cell& cell_of) {
  if (out.back() != '{') out += ',';
  out += json_text(name) + ":[";
  for (const std::size_t i : indices) {
    if (i != indices.front()) out += ',';
    out += cell_of(i);
  }
  out += ']';
}

// What verl tells about the turns of a row: num_turns, tool_rewards and turn_scores in extra_info. In Python's JSON the
// last value of a key counts.
std::string with_turn_info(std::string info, const std::string& turns) {
  const bool are_objects = info.front() == '{' && info.back() == '}' && turns.front() == '{' && turns.size() > 2;
  if (!are_objects) return info;
  info.back() = ',';
  return info == "{," ? turns : info + turns.substr(1);
}

std::string head(const std::vector<std::size_t>& indices) { return "{\"rows\":" + std::to_string(indices.size()); }

}  // namespace

bool Wanted::has(std::string_view name) const {
  return all_ || std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::string trl_request(const std::vector<Row>& rows, const std::vector<std::size_t>& indices, const Wanted& wanted,
                        std::int64_t max_steps) {
  const Row& first = rows[indices.front()];
  std::string out = head(indices) + ",\"step\":" + std::to_string(first.step()) +
                    ",\"max_steps\":" + std::to_string(max_steps) + ",\"names\":[";
  for (const std::string_view name : first.column_names()) out += (out.back() == '[' ? "" : ",") + json_text(name);
  out += "],\"columns\":{";
  for (const std::string_view name : first.column_names()) {
    const bool taken = name == "prompt" || name == "completion" || name == "completion_ids";
    if (!taken && wanted.has(name))
      add_list(out, name, indices, [&](std::size_t i) { return json_cell(rows[i], name); });
  }
  out += '}';
  if (wanted.has("prompts")) {
    add_list(out, "prompts", indices, [&](std::size_t i) {
      return rows[i].messages().empty() ? json_text(rows[i].prompt()) : std::string(rows[i].messages());
    });
  }
  if (wanted.has("completions")) {
    add_list(out, "completions", indices, [&](std::size_t i) {
      const std::string text = json_text(rows[i].completion());
      return rows[i].messages().empty() ? text : "[{\"role\":\"assistant\",\"content\":" + text + "}]";
    });
  }
  if (wanted.has("completion_ids"))
    add_list(out, "completion_ids", indices, [&](std::size_t i) { return json_ids(rows[i].completion_ids()); });
  return out + '}';
}

std::string verl_request(const std::vector<Row>& rows, const std::vector<std::size_t>& indices, const Wanted& wanted,
                         const std::string& truth) {
  std::string out = head(indices);
  if (wanted.has("data_source"))
    add_list(out, "data_source", indices, [&](std::size_t i) { return json_cell(rows[i], "data_source"); });
  if (wanted.has("solution_str"))
    add_list(out, "solution_str", indices, [&](std::size_t i) { return json_text(rows[i].completion()); });
  if (wanted.has("ground_truth"))
    add_list(out, "ground_truth", indices, [&](std::size_t i) { return ground_truth(rows[i], truth); });
  if (wanted.has("extra_info")) {
    add_list(out, "extra_info", indices, [&](std::size_t i) {
      const std::string info = json_cell(rows[i], "extra_info");
      return with_turn_info(info == "null" ? "{}" : info, json_cell(rows[i], "turn_info"));
    });
  }
  return out + '}';
}

std::string ground_truth(const Row& row, const std::string& path) {
  const auto found = find_truth(row, path);
  return found ? found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "null";
}

}  // namespace mortise
