// A header that compiles alone and twice: tests/lint/headers_alone.cmake must accept it.
#pragma once
#include <string>

struct GoodSample {
  std::string text;
};
