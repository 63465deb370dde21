// One formatted field: what printf-like formats and Python's format specifications share. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "text/template/value.h"

namespace mortise::jinja {

struct NumberFormat {
  std::string fill = " ";
  char align = '>';        // < > ^ or = (fill between sign and digits)
  char sign = '-';         // - + or space
  bool alternate = false;  // #
  bool zero = false;
  int64_t width = 0;
  char group = '\0';       // , or _
  int64_t precision = -1;  // -1: none
  char type = '\0';
};

Result<std::string> format_integer(Int value, const NumberFormat& style);
Result<std::string> format_double(double value, const NumberFormat& style);
// Cut to the precision, then padded.
std::string padded_text(std::string_view text, const NumberFormat& style);

}  // namespace mortise::jinja
