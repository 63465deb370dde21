// Looks at each part of an answer that is read later.
#include "python_answer.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace mortise {
namespace {

using Json = nlohmann::json;

bool is_reward(const Json& value) { return value.is_number() || value.is_null(); }

template <class F>
bool all_of(const Json& list, const F& is_good) {
  return list.is_array() && std::all_of(list.begin(), list.end(), is_good);
}

bool is_object(const Json& answer, const char* name) { return answer.contains(name) && answer[name].is_object(); }

bool has_good_texts(const Json& answer) {
  if (answer.contains("error") && !answer["error"].is_string()) return false;
  return !answer.contains("log") || all_of(answer["log"], [](const Json& line) { return line.is_string(); });
}

// Whether a key of "errors" is the number of a row.
bool is_row(const std::string& key, std::size_t num_rows) {
  std::size_t row = num_rows;
  const char* const end = key.data() + key.size();
  return std::from_chars(key.data(), end, row).ptr == end && row < num_rows;
}

bool is_metric(const Json& value) {
  return value.size() == 2 && all_of(value, [](const Json& part) { return part.is_number(); });
}

template <class F>
bool all_items(const Json& object, const F& is_good) {
  const auto items = object.items();
  return std::all_of(items.begin(), items.end(), [&](const auto& item) { return is_good(item.key(), item.value()); });
}

}  // namespace

bool is_batch_answer(const Json& answer, std::size_t num_rows) {
  if (!answer.is_object() || !has_good_texts(answer)) return false;
  if (answer.contains("error")) return true;
  if (!answer.contains("rewards") || answer["rewards"].size() != num_rows || !all_of(answer["rewards"], is_reward))
    return false;
  for (const char* name : {"errors", "values", "metrics"})
    if (!is_object(answer, name)) return false;
  const auto is_error = [&](const std::string& row, const Json& text) {
    return is_row(row, num_rows) && text.is_string();
  };
  const auto is_column = [&](const std::string&, const Json& list) {
    return list.is_array() && list.size() == num_rows;
  };
  return all_items(answer["errors"], is_error) && all_items(answer["values"], is_column) &&
         all_items(answer["metrics"], [](const std::string&, const Json& metric) { return is_metric(metric); });
}

bool is_row_answer(const Json& answer, std::size_t num_rows) {
  if (!answer.is_object() || !has_good_texts(answer)) return false;
  if (answer.contains("done")) return true;
  if (!answer.contains("row") || !answer["row"].is_number_unsigned()) return false;
  if (answer["row"].get<std::size_t>() >= num_rows) return false;
  if (answer.contains("error")) return true;
  return answer.contains("reward") && is_reward(answer["reward"]) && is_object(answer, "values");
}

}  // namespace mortise
