// The only file that reads the records of keys/*.h.
#define MORTISE_CONFIG_RECORDS
#include "config/fields.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <unordered_map>

#include "config/batch_plan.h"
#include "config/key_record.h"
#include "config/load.h"
#include "config/toml_text.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

// The name of a type in errors and explanations.
struct TypeName {
  std::string_view operator()(const bool*) const { return "true or false"; }
  std::string_view operator()(const int64_t*) const { return "integer"; }
  std::string_view operator()(const double*) const { return "number"; }
  std::string_view operator()(const std::string*) const { return "text"; }
  std::string_view operator()(const std::chrono::milliseconds*) const { return "duration"; }
  std::string_view operator()(const std::optional<bool>*) const { return "true, false or null"; }
  std::string_view operator()(const std::optional<int64_t>*) const { return "integer or null"; }
  std::string_view operator()(const std::optional<double>*) const { return "number or null"; }
  std::string_view operator()(const std::optional<std::string>*) const { return "text or null"; }
  std::string_view operator()(const std::vector<std::string>*) const { return "list of texts"; }
  std::string_view operator()(const std::vector<double>*) const { return "list of numbers"; }
  std::string_view operator()(const std::vector<int64_t>*) const { return "list of integers"; }
  std::string_view operator()(const Json*) const { return "table of parameters"; }
  std::string_view operator()(const ChoiceRef& choice) const {
    if (choice.shape == ChoiceRef::Shape::kList) return "list of texts";
    return choice.shape == ChoiceRef::Shape::kNullable ? "text or null" : "text";
  }
};

FieldRef default_ref(const Field& field) {
  static RunConfig run;
  static RewardConfig reward;
  return field.in_run ? field.in_run(run) : field.in_reward(reward);
}

FieldCatalog build_catalog() {
  FieldCatalog catalog;
  catalog.fields.reserve(200);
  describe_run(catalog);
  return catalog;
}

const FieldCatalog& catalog() {
  static const FieldCatalog built = build_catalog();
  return built;
}

std::string number_text(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? std::to_string(static_cast<int64_t>(value))
                                                              : format_f64(value);
}

struct DurationUnit {
  std::string_view name;
  int64_t ms;
};
constexpr std::array<DurationUnit, 4> kDurationUnits = {{{"h", 3'600'000}, {"m", 60'000}, {"s", 1'000}, {"ms", 1}}};
constexpr int64_t kMaxDurationMs = int64_t{1} << 50;

}  // namespace

void UseReason::set_text(std::string_view always) {
  text = [always = std::string(always)](const KeyUse&) { return always; };
}

NoEffectRule no_effect_rule(Uses when, UseCondition condition, UseReason reason, bool asks_plugins) {
  const auto why = [when, condition = std::move(condition), reason = std::move(reason)](const KeyUse& k) {
    return (uses(k.use) & when) == 0 || !condition.holds(k) ? std::nullopt : reason.text(k);
  };
  return {why, asks_plugins};
}

KeyRecord& KeyRecord::add(Peer peer, std::string_view name, std::optional<std::string_view> fallback) {
  field_.peers.push_back({peer, std::string(name), fallback ? std::optional<std::string>(*fallback) : std::nullopt});
  return *this;
}

KeyTableBase::KeyTableBase(FieldCatalog& catalog, std::string_view name, std::string_view doc,
                           std::function<void*(RunConfig&)> section)
    : catalog_(catalog), name_(name), section_(std::move(section)) {
  if (!name_.empty()) catalog_.tables.push_back({name_, std::string(doc), {}});
}

KeyRecord KeyTableBase::add(OnResume on_resume, std::string_view leaf, KeyPlace place, std::string_view doc) {
  Field& field = catalog_.fields.emplace_back();
  if (!name_.empty()) field.key.append(name_).append(".");
  field.key += leaf;
  field.doc = doc;
  field.on_resume = on_resume;
  field.unread = unread_;
  field.read_if = read_if_;
  field.read_by = read_by_;
  field.no_effect = rules_;
  field.choices.assign(place.choices.begin(), place.choices.end());
  const auto ref_in = [offset = place.offset, ref = place.ref](void* section) {
    return ref(static_cast<char*>(section) + offset);
  };
  if (section_) {
    field.in_run = [section = section_, ref_in](RunConfig& run) { return ref_in(section(run)); };
  } else {
    field.in_reward = [ref_in](RewardConfig& reward) { return ref_in(&reward); };
  }
  return KeyRecord(field);
}

std::string Field::type_name() const { return std::string(std::visit(TypeName{}, default_ref(*this))); }

bool Field::is_nullable() const { return type_name().ends_with("or null"); }

std::string Field::range_text() const {
  if (!choices.empty()) return "one of " + join(choices, ", ");
  std::string text;
  const std::string_view unit = type_name() == "duration" ? " ms" : "";
  if (std::isfinite(min)) {
    text = min_is_open ? "above " : "at least ";
    text.append(number_text(min)).append(unit);
  }
  if (std::isfinite(max)) {
    text += text.empty() ? "" : " and ";
    text += max_is_open ? "below " : "at most ";
    text.append(number_text(max)).append(unit);
  }
  if (num_items != 0) text += fmt::format("{}{} items", text.empty() ? "" : ", ", num_items);
  return text;
}

std::string Field::default_text() const {
  const Json value = field_value(default_ref(*this));
  return value.is_null() ? "null" : toml_value(value);
}

std::string Field::name_in(Peer peer) const {
  for (const PeerName& other : peers) {
    if (other.peer == peer && other.name != key) return other.name;
  }
  return peer == Peer::kTrl ? name_in(Peer::kTransformers) : "";
}

const std::vector<Field>& all_fields() { return catalog().fields; }
const std::vector<TableInfo>& all_tables() { return catalog().tables; }

const Field* find_field(std::string_view key) {
  static const std::unordered_map<std::string_view, const Field*> by_key = [] {
    std::unordered_map<std::string_view, const Field*> map;
    for (const Field& field : all_fields()) map.emplace(field.key, &field);
    return map;
  }();
  const auto found = by_key.find(key);
  return found == by_key.end() ? nullptr : found->second;
}

const TableInfo* find_table(std::string_view name) {
  for (const TableInfo& table : all_tables()) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

const Field* find_record(std::string_view key) {
  std::string name(key);
  constexpr std::string_view kReward = "reward.";
  if (name.starts_with(kReward)) {
    const size_t end = std::min(name.find('.', kReward.size()), name.size());
    name.replace(0, end, "reward.*");
  }
  for (size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1)) {
    const std::string_view part = std::string_view(name).substr(0, end);
    if (const Field* field = find_field(part)) return field;
    if (find_table(part) == nullptr) continue;
    const Field* inline_params = find_field(std::string(part) + ".params");
    return inline_params != nullptr && inline_params->inline_params ? inline_params : nullptr;
  }
  return nullptr;
}

std::vector<std::pair<std::string_view, Json>> offered_params(const RunConfig& config, std::string_view kind) {
  RunConfig copy = config;
  std::vector<std::pair<std::string_view, Json>> offered;
  for (const Field& field : all_fields()) {
    if (field.given_to != kind) continue;
    offered.emplace_back(std::string_view(field.key).substr(field.key.rfind('.') + 1), field_value(field.ref(copy)));
  }
  return offered;
}

Json field_value(const FieldRef& ref) {
  struct Visitor {
    Json operator()(const bool* value) const { return *value; }
    Json operator()(const int64_t* value) const { return *value; }
    Json operator()(const double* value) const { return *value; }
    Json operator()(const std::string* value) const { return *value; }
    Json operator()(const std::chrono::milliseconds* value) const { return format_duration(*value); }
    Json operator()(const std::optional<bool>* value) const { return *value ? Json(**value) : Json(); }
    Json operator()(const std::optional<int64_t>* value) const { return *value ? Json(**value) : Json(); }
    Json operator()(const std::optional<double>* value) const { return *value ? Json(**value) : Json(); }
    Json operator()(const std::optional<std::string>* value) const { return *value ? Json(**value) : Json(); }
    Json operator()(const std::vector<std::string>* value) const { return Json(*value); }
    Json operator()(const std::vector<double>* value) const { return Json(*value); }
    Json operator()(const std::vector<int64_t>* value) const { return Json(*value); }
    Json operator()(const Json* value) const { return *value; }
    Json operator()(const ChoiceRef& choice) const {
      Json names = Json::array();
      for (const size_t at : choice.read()) names.push_back(choice.names[at]);
      if (choice.shape == ChoiceRef::Shape::kList) return names;
      return names.empty() ? Json() : names[0];
    }
  };
  return std::visit(Visitor{}, ref);
}

std::string plugin_bare_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  return std::string(name.substr(0, name.find('@')));
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  if (text.empty()) return std::nullopt;
  double total_ms = 0;
  size_t next_unit = 0;  // units must come in falling order, each once
  while (!text.empty()) {
    const size_t digits = text.find_first_not_of("0123456789.");
    if (digits == std::string_view::npos || digits == 0) return std::nullopt;
    const std::optional<double> amount = parse_f64(text.substr(0, digits));
    text.remove_prefix(digits);
    const size_t letters = std::min(text.find_first_of("0123456789."), text.size());
    const std::string_view unit_name = text.substr(0, letters);
    text.remove_prefix(letters);
    size_t unit = next_unit;
    while (unit < kDurationUnits.size() && kDurationUnits[unit].name != unit_name) ++unit;
    if (!amount || unit == kDurationUnits.size()) return std::nullopt;
    total_ms += *amount * static_cast<double>(kDurationUnits[unit].ms);
    next_unit = unit + 1;
  }
  if (!(total_ms <= static_cast<double>(kMaxDurationMs))) return std::nullopt;
  return std::chrono::milliseconds(std::llround(total_ms));
}

std::string format_duration(std::chrono::milliseconds duration) {
  int64_t rest = duration.count();
  if (rest <= 0) return "0s";
  std::string text;
  for (const DurationUnit& unit : kDurationUnits) {
    if (rest / unit.ms == 0) continue;
    text.append(std::to_string(rest / unit.ms)).append(unit.name);
    rest %= unit.ms;
  }
  return text;
}

}  // namespace mortise
