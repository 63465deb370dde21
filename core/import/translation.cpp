// Reads settings with their defaults, and collects the lines of the new file and the problems.
#include "import/translation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config/fields.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/text.h"
#include "import/yaml.h"

namespace mortise {
namespace {

bool is_whole(const Json& value) {
  return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
         std::abs(value.get<double>()) < 9e15;
}

// The value in the type of our key: 3.0 for an integer, a number for a text, one item for a list.
Json fitted(const Field& field, const PeerSetting* setting, Json value) {
  const std::string type = field.type_name();
  if (type.starts_with("integer") && is_whole(value)) return static_cast<int64_t>(value.get<double>());
  const bool wants_text = type.starts_with("text");
  if (wants_text && setting != nullptr && !setting->raw.empty() && !value.is_null()) return setting->raw;
  if (type == "table of parameters" && value.is_string()) {
    if (Result<ConfigNode> parsed = parse_yaml(value.get<std::string>(), ""); parsed && parsed->is_table()) {
      std::vector<Error> ignored;
      return node_to_json(*parsed, ignored);
    }
  }
  if (type == "table of parameters" && value.is_null()) return Json::object();
  return value;
}

// Nothing of ours takes a null inside a list or table.
bool can_be_written(const Json& value, bool nested = false) {
  if (value.is_null()) return !nested;
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return false;
  if (!value.is_structured()) return true;
  return std::all_of(value.begin(), value.end(), [](const Json& item) { return can_be_written(item, true); });
}

// An interpolation without a value, or Hydra's "???", which the command line must give.
bool is_unresolved(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text == "???" || text.find("${") != std::string::npos;
  }
  return value.is_structured() && std::any_of(value.begin(), value.end(), is_unresolved);
}

}  // namespace

Translation::Translation(std::string framework, const PeerRules& rules, std::vector<PeerSetting> settings)
    : framework_(std::move(framework)), rules_(rules), settings_(std::move(settings)) {}

const PeerSetting* Translation::find(std::string_view name) const {
  const auto found = std::ranges::find(settings_, name, &PeerSetting::name);
  return found == settings_.end() ? nullptr : &*found;
}

std::string Translation::origin_of(std::string_view name) const {
  if (const PeerSetting* setting = find(name)) return fmt::format("{}: {}", setting->where, setting->given);
  return fmt::format("{}'s default of {}", framework_, name);
}

void Translation::problem(std::string_view name, std::string what, std::string next) {
  const PeerSetting* setting = find(name);
  told_.emplace(name);
  problems_.push_back({ErrorKind::kConfig, std::move(what),
                       setting != nullptr ? setting->where : fmt::format("{}'s default of {}", framework_, name),
                       std::move(next)});
}

void Translation::warn(std::string_view name, std::string_view what) {
  told_.emplace(name);
  warnings_.push_back(fmt::format("{}: {}", origin_of(name), what));
}

Json Translation::value(std::string_view name) const {
  if (const PeerSetting* setting = find(name)) return setting->value;
  const PeerRule* rule = rules_.find_exact(name);
  return rule == nullptr || rule->action == PeerAction::kRefuse ? Json() : rule_json(rule->values);
}

void Translation::wrong_type(std::string_view name, std::string_view wanted) {
  problem(name, fmt::format("{} must be {}, but is {}", quote(name), wanted, quote(dump_json(value(name)))), "");
}

double Translation::number(std::string_view name) {
  const Json given = value(name);
  if (given.is_number()) return given.get<double>();
  wrong_type(name, "a number");
  return 0;
}

int64_t Translation::integer(std::string_view name) {
  const Json given = value(name);
  if (given.is_number_integer()) return given.get<int64_t>();
  if (is_whole(given)) return static_cast<int64_t>(given.get<double>());
  wrong_type(name, "an integer");
  return 0;
}

bool Translation::flag(std::string_view name) {
  const Json given = value(name);
  if (given.is_boolean()) return given.get<bool>();
  if (given.is_null()) return false;
  if (given.is_number_integer() && (given == 0 || given == 1)) return given == 1;
  wrong_type(name, "true or false");
  return false;
}

std::string Translation::text(std::string_view name) {
  const PeerSetting* setting = find(name);
  if (setting != nullptr && !setting->raw.empty() && !setting->value.is_null()) return setting->raw;
  const Json given = value(name);
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_null()) wrong_type(name, "a text");
  return "";
}

std::vector<std::string> Translation::texts(std::string_view name) {
  const Json given = value(name);
  if (given.is_null()) return {};
  if (!given.is_array()) return {text(name)};
  std::vector<std::string> items;
  for (const Json& item : given) {
    if (!item.is_string()) {
      wrong_type(name, "a list of texts");
      return {};
    }
    items.push_back(item.get<std::string>());
  }
  return items;
}

std::vector<double> Translation::numbers(std::string_view name) {
  Json given = value(name);
  if (given.is_null()) return {};
  if (given.is_number()) given = Json::array({given});
  std::vector<double> items;
  for (const Json& item : given) {
    if (!given.is_array() || !item.is_number()) {
      wrong_type(name, "a list of numbers");
      return {};
    }
    items.push_back(item.get<double>());
  }
  return items;
}

Json Translation::table(std::string_view name) {
  Json given = value(name);
  if (given.is_string()) {
    Result<ConfigNode> parsed = parse_yaml(given.get<std::string>(), name);
    std::vector<Error> ignored;
    if (parsed && parsed->is_table()) given = node_to_json(*parsed, ignored);
  }
  if (given.is_object()) return given;
  if (!given.is_null()) wrong_type(name, "a table");
  return Json::object();
}

void Translation::set(std::string_view key, Json value, const std::vector<std::string_view>& names,
                      std::string_view remark) {
  std::vector<std::string> origins;
  for (const std::string_view name : names) {
    told_.emplace(name);
    if (is_given(name) || names.size() == 1) origins.push_back(origin_of(name));
  }
  if (origins.empty()) origins.push_back(framework_ + "'s defaults");
  if (!can_be_written(value)) {
    problem(names.front(),
            fmt::format("{} is {}, which cannot be written", quote(names.front()), quote(dump_json(value))), "");
    return;
  }
  const std::string name(key);
  if (!assignments_.contains(name)) order_.push_back(name);
  assignments_[name] = {std::move(value), join(origins, ", "), std::string(remark)};
}

bool Translation::is_set(std::string_view key) const { return assignments_.contains(key); }

Json Translation::value_set(std::string_view key) const {
  const auto found = assignments_.find(key);
  return found == assignments_.end() ? Json() : found->second.value;
}

std::string Translation::add_reward(std::string_view plugin, const std::vector<std::string_view>& names) {
  const std::string table = "reward." + std::to_string(num_rewards_++);
  set(table + ".use", std::string(plugin), names);
  return table;
}

std::string Translation::shown(std::string_view name) const {
  const PeerSetting* setting = find(name);
  const std::string text =
      setting == nullptr ? std::string(name) : fmt::format("{} = {}", setting->given, dump_json(setting->value));
  const std::string place = setting == nullptr ? framework_ + "'s default" : setting->where;
  return fmt::format("{} ({})", text.substr(0, 120), place);
}

void Translation::note(std::string_view name, std::string_view reason) {
  told_.emplace(name);
  notes_.push_back(one_line(fmt::format("{}: {}", shown(name), reason)));
}

void Translation::note_given(std::initializer_list<std::string_view> names, std::string_view reason) {
  for (const std::string_view name : names) {
    if (is_given(name)) note(name, reason);
  }
}

void Translation::ask(std::string_view table, std::string_view line) {
  asked_.emplace_back(std::string(table), std::string(line));
}

void Translation::apply_rules() {
  const std::vector<std::string> names = rules_.names();
  for (const PeerSetting& setting : settings_) {
    const PeerRule* rule = rules_.find(setting.name);
    if (rule != nullptr) {
      apply(setting, *rule);
      continue;
    }
    std::string next = did_you_mean(setting.name, names);
    if (next.empty()) next = fmt::format("remove it, or name it as {} does", framework_);
    problems_.push_back(
        {ErrorKind::kConfig, "unknown setting " + quote(setting.given), setting.where, std::move(next)});
  }
  for (const PeerRule* rule : rules_.all()) {
    if (!is_given(rule->name) && find_left_out(rule->name) == nullptr) apply_default(*rule);
  }
}

void Translation::leave_out(std::string_view table, std::string_view reason) {
  left_out_.push_back({std::string(table) + ".", std::string(reason)});
}

const Translation::LeftOut* Translation::find_left_out(std::string_view name) const {
  const auto it = std::ranges::find_if(left_out_, [&](const LeftOut& one) { return name.starts_with(one.table); });
  return it == left_out_.end() ? nullptr : &*it;
}

// One line for the whole table.
void Translation::note_below(const PeerSetting& setting, std::string_view table, std::string_view reason) {
  told_.emplace(setting.name);
  if (!noted_subtrees_.insert(std::string(table)).second) return;
  notes_.push_back(fmt::format("{} ({}): {}", table, setting.where, reason));
}

bool Translation::is_known(std::string_view name) const {
  const PeerSetting* setting = find(name);
  return setting == nullptr || (setting->unknown.empty() && !is_unresolved(setting->value));
}

bool Translation::require(const PeerSetting& setting) {
  if (!setting.unknown.empty()) {
    has_unknown_ = true;
    problem(setting.name, fmt::format("{} is not known: {}", quote(setting.given), setting.unknown), setting.hint);
    return false;
  }
  if (!is_unresolved(setting.value)) return true;
  problem(setting.name, quote(fmt::format("{} = {}", setting.given, dump_json(setting.value))) + " is not resolved",
          "write its value");
  return false;
}

void Translation::apply(const PeerSetting& setting, const PeerRule& rule) {
  if (const LeftOut* left = find_left_out(setting.name)) return note_below(setting, left->table + "*", left->reason);
  if (rule.action != PeerAction::kNoEffect && !require(setting)) return;
  switch (rule.action) {
    case PeerAction::kCompute:
      return;
    case PeerAction::kNoEffect: {
      if (told_.contains(setting.name)) return;
      const auto better = better_reasons_.find(rule.text);
      const std::string_view reason = better == better_reasons_.end() ? rule.text : better->second;
      if (!rule.name.ends_with(".*") || takes_any_name(rule, setting.name)) return note(setting.name, reason);
      return note_below(setting, rule.name, reason);
    }
    case PeerAction::kRefuse: {
      const Json accepted = rule_json(rule.values);
      const bool passes = std::any_of(accepted.begin(), accepted.end(), [&setting](const Json& item) {
        return same_setting(setting.value, setting.raw, item);
      });
      if (passes) return note(setting.name, "as here");
      return problem(setting.name,
                     fmt::format("{} is not supported: {}",
                                 quote(fmt::format("{} = {}", setting.given, dump_json(setting.value))), rule.text),
                     "remove it if the run may differ in this: it would change the numbers");
    }
    case PeerAction::kTranslate:
      break;
  }
  const Field* field = find_field(rule.target);  // there is one: a test looks at every rule
  if (setting.value.is_null() && !field->is_nullable()) return note(setting.name, "null: the default applies");
  set(rule.target, fitted(*field, &setting, setting.value), {setting.name});
}

void Translation::apply_default(const PeerRule& rule) {
  if (rule.action != PeerAction::kTranslate) return;
  if (rule.values.empty() || rule.name.ends_with(".*")) return;
  const Field* field = find_field(rule.target);
  const Json fallback = rule_json(rule.values);
  if (field == nullptr || (fallback.is_null() && !field->is_nullable())) return;
  RunConfig defaults;
  if (!field->in_run || same_setting(field_value(field->in_run(defaults)), "", fallback)) return;
  set(rule.target, fitted(*field, nullptr, fallback), {rule.name});
}

void Translation::note_untold() {
  std::vector<std::string> names;
  for (const PeerSetting& setting : settings_) {
    if (!told_.contains(setting.name)) names.push_back(setting.name);
  }
  for (const std::string& name : names) {
    if (value(name).is_null()) {
      note(name, "null, as if it were not set");
    } else {
      read_with_others_.push_back(one_line(shown(name)));
    }
  }
}

}  // namespace mortise
