// Mathematics that is marked as such, in delimiters, as math-verify finds it where it is not told where to look.
#pragma once

#include <string>
#include <string_view>

namespace mortise::math {

// "-\frac{1}{2.5}" at text[i], numbers only; empty where none stands there.
std::string_view literal_fraction_at(std::string_view text, std::size_t i);

// The formula at text[begin] and those that commas, "and" and "or" join to it; empty where none stands there.
std::string joined_formulas_at(std::string_view text, std::size_t begin);

// Behind the last "answer" that a marked formula follows; "final answer ... is" goes before "answer:" before "answer".
// Formulas that commas, "and" or "or" join come with it. Empty where there is none. Linear in the text.
std::string marked_answer(std::string_view text);

// The last formula in delimiters where words stand around it, and no box; empty where the text is to be read as a
// whole.
std::string formula_in_prose(std::string_view text);

// Has it anything that math-verify takes for mathematics without being told where: a box, a formula in delimiters, a
// fraction of two numbers, a number that begins a word? "\sqrt{2}" and "x+1" have not, "$x+1$" has.
bool is_marked(std::string_view text);

}  // namespace mortise::math
