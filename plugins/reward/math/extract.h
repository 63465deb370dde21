// Finds the answer in a completion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mortise::math {

enum class Extraction {
  kBoxed,   // only the last \boxed{...} or \fbox{...}
  kMarked,  // that; else the formula in delimiters behind the last "final answer ... is", "answer:", "answer", as
            // math-verify finds it without try_extract_without_anchor
  kAny,     // a box; else behind the last "####"; else behind the last "answer is" or "answer:"; else the last formula;
            // else the whole text where it is one; else the last number
};

// Candidates, best first: the answer is the first that can be read. Linear in the text.
std::vector<std::string> extract(std::string_view completion, Extraction extraction);

// The answer in a data row, which may be in a worked solution ("... #### 42", "... \boxed{42}").
std::string extract_gold(std::string_view text);

// The last \boxed{...}, with braces matched. Boxes that "and", "or" or a comma joins to it are included, separated by
// commas. Empty if there is none.
std::string last_box(std::string_view text);

}  // namespace mortise::math
