// Parses the answer of a reward service, entry by entry.
#include "http_answer.h"

#include <nlohmann/json.hpp>

#include "parse/json.h"

namespace mortise {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShownBytes = 100;

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

void read_entry(const Json& entry, std::size_t row, HttpAnswerSink& sink) {
  const Json* score = &entry;
  if (entry.is_object()) {
    if (const auto error = entry.find("error"); error != entry.end())
      return sink.failed(row, error->is_string() ? error->get<std::string>() : error->dump());
    const auto found = entry.find("score");
    if (found == entry.end()) return sink.failed(row, "an entry without 'score' or 'error': " + shown(entry));
    score = &*found;
  }
  if (score->is_null()) return;
  if (!score->is_number() && !score->is_boolean())
    return sink.failed(row, "a reward that is not a number: " + shown(*score));
  sink.reward(row, score->is_boolean() ? double(score->get<bool>()) : score->get<double>());
  if (!entry.is_object()) return;
  for (const auto& [name, value] : entry.items()) {
    if (name == "score" || name.empty()) continue;
    if (value.is_number()) sink.note(row, name, value.get<double>());
    if (value.is_boolean()) sink.note(row, name, value.get<bool>() ? 1 : 0);
  }
}

}  // namespace

std::string read_http_answer(const std::string& text, std::size_t num_rows, HttpAnswerSink& sink) {
  const std::string rows = std::to_string(num_rows) + " rows: " + text.substr(0, kShownBytes);
  const auto answer = parse::parse_json(text);
  if (!answer) return "answered with text that is not JSON to " + rows + " (" + answer.fault().to_string() + ")";
  const Json* list = &*answer;
  if (list->is_object()) {
    if (const auto found = list->find("rewards"); found != list->end()) list = &*found;
  }
  if (!list->is_array() || list->size() != num_rows) {
    const std::string got =
        list->is_array() ? std::to_string(list->size()) + " rewards" : "neither a list nor {\"rewards\": [...]}";
    return "answered " + got + " to " + rows;
  }
  for (std::size_t row = 0; row < num_rows; ++row) read_entry((*list)[row], row, sink);
  return "";
}

}  // namespace mortise
