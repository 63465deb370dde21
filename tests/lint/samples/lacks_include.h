// Uses std::string without its include: tests/lint/headers_alone.cmake must refuse it.
#pragma once

struct LacksIncludeSample {
  std::string text;
};
