// Mathematics in delimiters, as math-verify finds it without further settings.
#pragma once

#include <string>
#include <string_view>

namespace mortise::math {

// "-\frac{1}{2.5}" at text[i], with numbers only; empty if there is none.
std::string_view literal_fraction_at(std::string_view text, std::size_t i);

// The formula at text[begin] and those that commas, "and" and "or" join to it; empty if there is none.
std::string joined_formulas_at(std::string_view text, std::size_t begin);

// The formula after the last "answer" that has one; "final answer ... is" wins over "answer:", which wins over
// "answer". Formulas joined by commas, "and" or "or" are included. Empty if there is none. Linear in the text.
std::string marked_answer(std::string_view text);

// The last formula in delimiters, if there are words around it and no box; empty if the text is to be read as a whole.
std::string formula_in_prose(std::string_view text);

// Does it have anything that math-verify takes for mathematics without further settings: a box, a formula in
// delimiters, a fraction of two numbers, a number that begins a word? "\sqrt{2}" and "x+1" have not, "$x+1$" has.
bool is_marked(std::string_view text);

}  // namespace mortise::math
