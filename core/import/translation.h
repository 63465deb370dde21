// Translation: the state of one import. It returns the file's values (or the framework's defaults), and collects the
// lines of our file with the reason for each, and all problems.
//
// A problem does not stop the work: all problems of a file are reported at once. Private to this room.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "import/source.h"

namespace mortise {

class Translation {
 public:
  // `framework`: "TRL", as people write it.
  Translation(std::string framework, const PeerRules& rules, std::vector<PeerSetting> settings);

  // Applies the rules to every setting, and the defaults of the translated ones that differ from ours. What the rules
  // call kCompute is left to the caller, by the functions below.
  void apply_rules();
  // Call it first, for each such table: known settings below `table` have no effect, whatever their rules say.
  void leave_out(std::string_view table, std::string_view reason);
  // Call it first too: rules that give `reason` for a setting without effect give `better` instead.
  void say_instead(std::string_view reason, std::string_view better) { better_reasons_[reason] = better; }
  // Addresses of servers that the caller gave. Empty: none.
  void use_servers(std::vector<std::string> urls) { servers_ = std::move(urls); }
  [[nodiscard]] const std::vector<std::string>& servers() const { return servers_; }

  // --- what the file says; the framework's default where it says nothing ---
  [[nodiscard]] bool is_given(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] bool is_null(std::string_view name) const { return value(name).is_null(); }
  // Wrong types are problems, and count as the default.
  double number(std::string_view name);
  int64_t integer(std::string_view name);
  bool flag(std::string_view name);
  std::string text(std::string_view name);
  std::vector<std::string> texts(std::string_view name);  // one text counts as a list of one; null is empty
  std::vector<double> numbers(std::string_view name);
  Json table(std::string_view name);  // {...} or its JSON text; null is empty
  [[nodiscard]] Json value(std::string_view name) const;

  // --- what our file will hold ---
  // `names`: the settings that it follows from. `remark`: more to say, or empty.
  void set(std::string_view key, Json value, const std::vector<std::string_view>& names, std::string_view remark = "");
  [[nodiscard]] bool is_set(std::string_view key) const;
  [[nodiscard]] Json value_set(std::string_view key) const;  // null where it is not set
  // A [[reward]] table; returns its place for set("reward.0.weight", ...).
  std::string add_reward(std::string_view plugin, const std::vector<std::string_view>& names);
  [[nodiscard]] bool is_known(std::string_view name) const;  // false: the source only gives it when it runs
  // Is the value known? If the source only gives it when it runs, that is a problem.
  bool require(std::string_view name) {
    const PeerSetting* setting = find(name);
    return setting == nullptr || require(*setting);
  }
  // A comment at the head of our file.
  void say_first(std::string line) { first_lines_.push_back("# " + std::move(line)); }
  // A line of the list of settings without effect. Where it comes before apply_rules, it replaces the rule's.
  void note(std::string_view name, std::string_view reason);
  // Such a line for each of them that the file has.
  void note_given(std::initializer_list<std::string_view> names, std::string_view reason);
  // What the reader must still fill in: a commented line under a table ("model", "path = \"...\"  # ...").
  void ask(std::string_view table, std::string_view line);
  void problem(std::string_view name, std::string what, std::string next);
  void warn(std::string_view name, std::string_view what);
  // A problem of no single setting after which nothing more can be said.
  void unknown(std::string what, std::string where, std::string next) {
    has_unknown_ = true;
    problems_.push_back({ErrorKind::kConfig, std::move(what), std::move(where), std::move(next)});
  }
  // After all of that: a line for each setting of the file that nothing above has handled, so that none is lost.
  void note_untold();

  // --- results ---
  struct Line {
    std::string text;
    std::string origin;  // what a key follows from
  };
  [[nodiscard]] std::vector<Line> lines() const;
  [[nodiscard]] std::vector<Error>& problems() { return problems_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  [[nodiscard]] const std::vector<std::string>& first_lines() const { return first_lines_; }
  [[nodiscard]] size_t num_rewards() const { return num_rewards_; }
  // A value that is needed is not known, which is a problem: anything computed from it would be wrong.
  [[nodiscard]] bool has_unknown() const { return has_unknown_; }

 private:
  struct Assignment {
    Json value;
    std::string origin;
    std::string remark;
  };

  [[nodiscard]] const PeerSetting* find(std::string_view name) const;
  void apply(const PeerSetting& setting, const PeerRule& rule);
  bool require(const PeerSetting& setting);
  void note_below(const PeerSetting& setting, std::string_view table, std::string_view reason);
  struct LeftOut {
    std::string table;  // with its dot
    std::string reason;
  };
  [[nodiscard]] const LeftOut* find_left_out(std::string_view name) const;  // null: it is not left out
  void apply_default(const PeerRule& rule);
  [[nodiscard]] std::string origin_of(std::string_view name) const;
  [[nodiscard]] std::string shown(std::string_view name) const;  // "beta = 0.04 (run.yaml:7:1)"
  void wrong_type(std::string_view name, std::string_view wanted);
  [[nodiscard]] std::multimap<std::string, std::string> keys_by_table() const;  // our keys that are assigned
  void add_table(std::vector<Line>& lines, const std::string& table,
                 const std::multimap<std::string, std::string>& keys) const;
  void add_reward_tables(std::vector<Line>& lines) const;

  std::string framework_;
  const PeerRules& rules_;
  std::vector<PeerSetting> settings_;
  std::map<std::string, Assignment, std::less<>> assignments_;
  std::vector<std::string> order_;  // the order of the assignments
  std::vector<std::pair<std::string, std::string>> asked_;
  std::vector<std::string> notes_;
  std::vector<std::string> read_with_others_;  // settings that lines follow from which name others
  std::set<std::string, std::less<>> noted_subtrees_;
  std::vector<LeftOut> left_out_;
  std::map<std::string_view, std::string_view> better_reasons_;  // constant texts
  std::vector<std::string> servers_;
  std::vector<std::string> first_lines_;
  std::vector<Error> problems_;
  std::vector<std::string> warnings_;
  std::set<std::string, std::less<>> told_;  // the settings that an assignment, a note, a problem or a warning names
  size_t num_rewards_ = 0;
  bool has_unknown_ = false;
};

}  // namespace mortise
