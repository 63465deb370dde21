// Interprets assignments of a script line by line, without executing it.
#include "import/shell.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "foundation/base/text.h"
#include "import/shell_expand.h"
#include "import/shell_lexer.h"

namespace mortise {

namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// The plain text of a word without quotes and variables; else "".
std::string_view plain(const ShellToken& token) {
  const bool is_plain = token.kind == ShellToken::Kind::kWord && token.pieces.size() == 1 &&
                        token.pieces[0].kind == ShellPiece::Kind::kText && !token.pieces[0].quoted;
  return is_plain ? std::string_view(token.pieces[0].text) : std::string_view();
}

// NAME=... or NAME+=...: its name, and where the value begins in the first piece.
struct Assignment {
  std::string name;
  size_t value_at = 0;
  bool appends = false;
};
std::optional<Assignment> assignment_of(const ShellToken& token) {
  if (token.pieces.empty() || token.pieces[0].kind != ShellPiece::Kind::kText || token.pieces[0].quoted) return {};
  const std::string& text = token.pieces[0].text;
  size_t length = 0;
  while (length < text.size() && (std::isalnum(static_cast<unsigned char>(text[length])) != 0 || text[length] == '_'))
    ++length;
  if (length == 0 || std::isdigit(static_cast<unsigned char>(text[0])) != 0) return {};
  const bool appends = text.substr(length).starts_with("+=");
  if (!appends && !text.substr(length).starts_with('=')) return {};
  return Assignment{text.substr(0, length), length + (appends ? 2 : 1), appends};
}

class ScriptReader {
 public:
  ScriptReader(std::string_view text, std::string_view where, const ShellVariables& given,
               const ShellVariables& environment)
      : lexer_(text), where_(where), expander_(where, given) {
    for (const auto& [name, value] : environment) expander_.assign(name, {{value, "", "", ""}}, /*appends=*/false);
  }

  Result<ShellScript> run() {
    while (true) {
      auto token = lexer_.next();
      if (!token.ok()) {
        Error error = std::move(token).error();
        error.where = fmt::format("{}:{}", where_, error.where);
        return error;
      }
      using Kind = ShellToken::Kind;
      const bool ends = token->kind == Kind::kNewline || token->kind == Kind::kEnd;
      if (!ends && token->kind != Kind::kOperator) {
        statement_.push_back(*std::move(token));
        continue;
      }
      TRY(read_statement());
      if (token->kind == Kind::kEnd) return std::move(script_);
      follow(ends ? "" : token->op);
    }
  }

 private:
  // The meaning of an operator for the statement after it.
  void follow(const std::string& op) {
    after_test_ = (op == "&&" || op == "||") && (was_test_ || after_test_);
    continues_ = op.empty();
  }

  // Assignments of a branch or a loop may or may not happen.
  [[nodiscard]] bool is_conditional() const { return depth_ > 0 || after_test_; }

  // Takes the words of control away; false: nothing else is left of the statement.
  bool read_control() {
    while (!statement_.empty()) {
      const std::string word(plain(statement_.front()));
      if (is_one_of(word, {"if", "while", "until", "for", "case", "select", "{"})) ++depth_;
      if (is_one_of(word, {"fi", "done", "esac", "}"})) depth_ = std::max(0, depth_ - 1);
      if (word == "for" || word == "select") {
        if (statement_.size() > 1)
          expander_.forget(std::string(plain(statement_[1])), "a loop sets " + std::string(plain(statement_[1])));
        return false;
      }
      if (word == "case" || word == "function") return false;
      if (!is_one_of(word, {"if", "while", "until", "{", "}", "then", "else", "elif", "do", "done", "fi", "esac", "!",
                            "time", "nohup", "exec", "sudo", "env"}))
        return true;
      statement_.erase(statement_.begin());
    }
    return false;
  }

  Result<> read_statement() {
    was_test_ = !statement_.empty() && is_one_of(plain(statement_.front()), {"[", "[[", "test"});
    if (read_control()) {
      if (is_one_of(plain(statement_.front()), {"export", "declare", "local", "readonly", "typeset"})) {
        TRY(read_declaration());
      } else {
        TRY(read_command());
      }
    }
    statement_.clear();
    return {};
  }

  Result<> assign(const ShellToken& token, const Assignment& to) {
    std::vector<ShellWord> values;
    if (token.kind == ShellToken::Kind::kArray) {
      for (const std::vector<ShellPiece>& item : token.items) {
        for (ShellWord& word : TRY(expander_.words(item, token.line))) values.push_back(std::move(word));
      }
    } else {
      values.push_back(TRY(value_of(token, to)));
    }
    if (!is_conditional()) {
      expander_.assign(to.name, std::move(values), to.appends);
    } else {
      expander_.forget(to.name,
                       fmt::format("{} is set under a condition or in a loop ({}:{})", to.name, where_, token.line));
    }
    return {};
  }

  Result<ShellWord> value_of(const ShellToken& token, const Assignment& to) {
    std::vector<ShellPiece> pieces = token.pieces;
    pieces[0].text.erase(0, to.value_at);
    return expander_.word(pieces, token.line);
  }

  Result<> read_declaration() {
    const bool exports = is_one_of(plain(statement_.front()), {"export", "declare", "typeset"});
    for (size_t i = 1; i < statement_.size(); ++i) {
      const auto to = assignment_of(statement_[i]);
      if (to) TRY(assign(statement_[i], *to));
      const std::string name = to ? to->name : std::string(plain(statement_[i]));
      if (exports && !name.empty() && !name.starts_with('-')) exported_.insert(name);
    }
    return {};
  }

  Result<> read_command() {
    size_t first = 0;
    while (first < statement_.size() && assignment_of(statement_[first])) ++first;
    if (first == statement_.size()) {  // assignments to variables of the script
      for (const ShellToken& token : statement_) TRY(assign(token, *assignment_of(token)));
      return {};
    }
    ShellCommand command;
    for (size_t i = 0; i < first; ++i) {
      const auto to = assignment_of(statement_[i]);
      if (statement_[i].kind == ShellToken::Kind::kWord)
        command.environment[to->name] = TRY(value_of(statement_[i], *to));
    }
    for (size_t i = first; i < statement_.size(); ++i) {
      for (ShellWord& word : TRY(expander_.words(statement_[i].pieces, statement_[i].line)))
        command.words.push_back(std::move(word));
    }
    for (const std::string& name : exported_) {
      if (expander_.is_set(name))
        command.environment.try_emplace(
            name, TRY(expander_.word({{ShellPiece::Kind::kVariable, name, true}}, statement_[first].line)));
    }
    add(std::move(command));
    return {};
  }

  // Arguments on separate lines are arguments of the command before them, or of none.
  void add(ShellCommand command) {
    if (command.words.empty()) return;
    const std::string& front = command.words.front().text;
    if (is_one_of(front, {"cd", "pushd", "popd"})) expander_.forget("PWD", "the script changes its folder");
    const bool is_argument = front.starts_with('-') || front.starts_with('+') || front.starts_with('~') ||
                             (front.find('=') != std::string::npos && front.find('.') < front.find('='));
    if (is_argument && continues_ && !script_.commands.empty()) {
      std::vector<ShellWord>& words = script_.commands.back().words;
      words.insert(words.end(), command.words.begin(), command.words.end());
      return;
    }
    script_.commands.push_back(std::move(command));
  }

  ShellLexer lexer_;
  std::string where_;
  ShellExpander expander_;
  std::set<std::string> exported_;
  std::vector<ShellToken> statement_;
  ShellScript script_;
  int depth_ = 0;            // ifs, loops and functions around the statement
  bool was_test_ = false;    // the statement before was [ ... ]
  bool after_test_ = false;  // this one depends on such a statement
  bool continues_ = true;    // only an end of line is before this one, no operator
};

}  // namespace

Result<ShellScript> read_shell(std::string_view text, std::string_view where, const ShellVariables& given,
                               const ShellVariables& environment) {
  return ScriptReader(text, where, given, environment).run();
}

}  // namespace mortise
