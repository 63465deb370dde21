// A place in a template. Thread rule: plain values.
#pragma once

#include <string>
#include <string_view>

namespace mortise::jinja {

struct Place {
  int line = 1;
  int column = 1;  // in characters
};

// "chat_template.jinja:3:14"
inline std::string place_text(std::string_view name, const Place& place) {
  return std::string(name) + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

}  // namespace mortise::jinja
