// Small readers and a writer for the JSON of servers. They throw nothing but bad_alloc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parse/json.h"

namespace mortise {

using AnswerJson = nlohmann::json;

// As one line; bytes that are no UTF-8 become U+FFFD.
inline std::string json_line(const AnswerJson& json) {
  return json.dump(-1, ' ', false, AnswerJson::error_handler_t::replace);
}

// The member, or null if it is not there.
inline const AnswerJson* member_of(const AnswerJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

inline bool read_ids(const AnswerJson* list, std::vector<std::int64_t>& out) {
  if (list == nullptr || !list->is_array()) return false;
  for (const AnswerJson& id : *list) {
    if (!id.is_number_integer()) return false;
    out.push_back(id.get<std::int64_t>());
  }
  return true;
}

inline bool read_floats(const AnswerJson* list, std::vector<float>& out) {
  if (list == nullptr || !list->is_array()) return false;
  for (const AnswerJson& value : *list) {
    if (!value.is_number()) return false;
    out.push_back(value.get<float>());
  }
  return true;
}

inline std::int64_t read_count(const AnswerJson* value, std::int64_t fallback) {
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : fallback;
}

// A version that a server gives as a number or as text; -1: none, or not one of ours.
inline std::int64_t read_version(const AnswerJson* value) {
  if (value == nullptr) return -1;
  if (value->is_number_integer()) return value->get<std::int64_t>();
  if (!value->is_string()) return -1;
  const std::string& text = value->get_ref<const std::string&>();
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(text);
}

}  // namespace mortise
