// The words that a shell makes of a token: variables, arrays and arithmetic put in, and the result split at blanks
// where no quotes hold it together. Private to this room. Threading: one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "import/shell.h"
#include "import/shell_lexer.h"

namespace mortise {

class ShellExpander {
 public:
  ShellExpander(std::string_view where, const ShellVariables& given) : where_(where) {
    for (const auto& [name, value] : given) given_[name] = {{value, "", "", ""}};
    variables_["PWD"] = {{".", "", "", ""}};  // also what `pwd` prints: paths are as seen from the folder of the import
  }

  // A scalar is a list of one. A variable from --set does not change.
  void assign(const std::string& name, std::vector<ShellWord> values, bool appends);
  // From here on the variable has a value that is not known.
  void forget(const std::string& name, std::string why);
  [[nodiscard]] bool is_set(const std::string& name) const { return find(name) != nullptr; }

  // The words of a token; possibly none.
  Result<std::vector<ShellWord>> words(const std::vector<ShellPiece>& pieces, int64_t line);
  // One word, blanks and all: what an assignment takes.
  Result<ShellWord> word(const std::vector<ShellPiece>& pieces, int64_t line);

 private:
  using Values = std::vector<ShellWord>;
  [[nodiscard]] const Values* find(std::string_view name) const;
  [[nodiscard]] ShellWord unknown(std::string why, std::string name = "") const {
    return {"", "", std::move(why), std::move(name)};
  }
  Result<Values> expand(const ShellPiece& piece, int depth);
  Result<Values> variable(const std::string& inside, int depth);
  Result<Values> with_default(const std::string& name, std::string_view rest, int depth);
  Result<ShellWord> glued(const std::vector<ShellPiece>& pieces, int depth);
  Result<ShellWord> joined(std::string_view text, int depth);
  ShellWord arithmetic(std::string_view text, int depth);
  Result<> count(size_t bytes);

  std::string where_;
  std::map<std::string, Values, std::less<>> given_, variables_;
  size_t bytes_ = 0;  // expanded so far
};

}  // namespace mortise
