// The names that the lexer and the parser know.
#pragma once

#include <string_view>

#include "scan.h"

namespace mortise::math {

bool is_function(std::string_view name);    // takes one number: sin, ln, ...
bool is_of_several(std::string_view name);  // takes numbers in brackets: gcd, max, ...
bool is_greek(std::string_view name);       // a letter by its name
bool is_decoration(std::string_view name);  // \vec and what makes another name of a name

// "million", "thousands": what the word multiplies a number by; 0 for any other word.
long scale_of(std::string_view word);

// How many bytes at text[i] are spaces and scale words, as in "5 hundred thousand people"; 0 if there are none.
std::size_t scale_words_at(std::string_view text, std::size_t i);

}  // namespace mortise::math
