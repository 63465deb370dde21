// The words of a Python source. It knows only the grammar that separates statements: texts, comments, brackets and
// continued lines. Thread rule: free function without state.
#pragma once

#include <string_view>
#include <vector>

namespace mortise {

// Words (all that is_python_word takes), single characters, and "\n" where a statement ends; texts are left out. They
// point into `source`.
bool is_python_word(char c);
std::vector<std::string_view> python_tokens(std::string_view source);

}  // namespace mortise
