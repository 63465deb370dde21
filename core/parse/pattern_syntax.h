// What the source of a regular expression says about how to search with it. Thread rule: pure functions. C++17.
#pragma once

#include <string_view>

namespace mortise::parse {

// Whether the pattern asks where the search started (\G), or has one of the verbs that steer backtracking, such as
// (*COMMIT). PCRE2 must then search the text in one call.
[[nodiscard]] bool depends_on_the_start(std::string_view source);

}  // namespace mortise::parse
