# For includes.sh: which header's name says where a symbol comes from. Input: headers; output: "file:line: what".
BEGIN {
  split("string vector map set deque array optional variant span tuple memory functional string_view filesystem chrono thread mutex atomic utility", h, " ")
  split("u?string|to_string|stoi|getline vector (multi)?map (multi)?set deque array|to_array optional|nullopt|nullopt_t|make_optional variant|monostate|holds_alternative|get_if|visit span tuple|tie|make_tuple (unique|shared|weak)_ptr|make_(unique|shared)|enable_shared_from_this function|reference_wrapper|hash|less|greater|plus string_view filesystem chrono jthread|thread|stop_token mutex|lock_guard|unique_lock|scoped_lock|once_flag atomic|atomic_flag pair|move|forward|exchange|swap|as_const|make_pair", s, " ")
  for (i = 1; i in h; i++) from["std::(" s[i] ")"] = "<" h[i] ">"
  from["std::u?int(8|16|32|64)_t"] = "<cstdint>"
  from["std::unordered_(multi)?map"] = "<unordered_map>"
  from["std::unordered_(multi)?set"] = "<unordered_set>"
  from["std::(numeric_limits)"] = "<limits>"
  from["nlohmann::(ordered_)?json"] = "<nlohmann/json"
  from["(at|c10|torch)::[A-Za-z_]+"] = "<(ATen|c10|torch)/"
  # what any of these bring in by their own definition
  also["<utility>"] = "<(map|unordered_map|memory|tuple|functional|optional|variant|vector|string|array|algorithm)>"
  also["<string_view>"] = "<string>"
  also["<cstdint>"] = "mortise/[a-z_/.]*h"
}
FNR == 1 { finish_file(); file = FILENAME; delete first; text = ""; block = 0 }
/^#include/ { text = text $0 "\n"; next }
{
  line = $0
  gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
  sub(/\/\/.*/, "", line)
  for (symbol in from)
    if (!(symbol in first) && match(line, "(^|[^A-Za-z0-9_:])" symbol "([^A-Za-z0-9_]|$)")) first[symbol] = FNR ": " name(substr(line, RSTART, RLENGTH))
}
END { finish_file() }
function name(text) {
  gsub(/^[^A-Za-z0-9_]|[^A-Za-z0-9_]$/, "", text)
  return text
}
function finish_file(   symbol, header) {
  if (file == "") return
  for (symbol in first) {
    header = from[symbol]
    if (text ~ header || (header in also && text ~ also[header])) continue
    printf "%s:%s needs #include %s\n", file, first[symbol], header
  }
}
