// One spelling for what LaTeX, Unicode and plain text write in many ways.
#pragma once

#include <string>
#include <string_view>

namespace mortise::math {

// The longest answer that is looked at, in bytes.
inline constexpr std::size_t kMaxAnswer = 8192;

// Unicode becomes LaTeX or ASCII. Spacing, sizes and \left \right are removed. \dfrac becomes \frac, \geq becomes \ge,
// and styles are removed. \text{...} becomes "..." unless it has mathematics. Math delimiters, Markdown marks, $ and
// the full stop at the end are removed. Linear in the text; an answer longer than kMaxAnswer becomes empty.
std::string normalise(std::string_view answer);

// The normalised answer without spaces and quotes. Equal texts are equal answers, whatever they mean.
std::string without_spaces(std::string_view normalised);

}  // namespace mortise::math
