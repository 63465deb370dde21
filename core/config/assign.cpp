// Writes one checked value into its field, with a visitor over the type of the field.
#include "config/assign.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/home_path.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

class Assigner {
 public:
  Assigner(const Field& field, const ConfigNode& node) : field_(field), node_(node) {}

  Result<> operator()(bool* out) const {
    if (!is_value() || !node_.value.is_boolean()) return wrong_type("write true or false");
    *out = node_.value.get<bool>();
    return {};
  }
  Result<> operator()(std::optional<bool>* out) const {
    if (is_null()) return out->reset(), Result<>();
    return (*this)(&out->emplace());
  }
  Result<> operator()(int64_t* out) const {
    *out = TRY(integer());
    return {};
  }
  Result<> operator()(double* out) const {
    *out = TRY(number(is_value() ? node_.value : Json()));
    return {};
  }
  Result<> operator()(std::string* out) const {
    *out = TRY(text());
    return {};
  }
  Result<> operator()(std::chrono::milliseconds* out) const {
    const std::string written = TRY(text());
    const std::optional<std::chrono::milliseconds> duration = parse_duration(written);
    if (!duration) {
      return problem("must be a duration, but is " + node_.describe(),
                     "write a number and a unit: \"500ms\", \"10s\", \"2m\", \"1h\"");
    }
    TRY(in_range(static_cast<double>(duration->count())));
    *out = *duration;
    return {};
  }
  Result<> operator()(std::optional<int64_t>* out) const {
    if (is_null()) return out->reset(), Result<>();
    *out = TRY(integer());
    return {};
  }
  Result<> operator()(std::optional<double>* out) const {
    if (is_null()) return out->reset(), Result<>();
    *out = TRY(number(is_value() ? node_.value : Json()));
    return {};
  }
  Result<> operator()(std::optional<std::string>* out) const {
    if (is_null()) return out->reset(), Result<>();
    *out = TRY(text());
    return {};
  }
  Result<> operator()(std::vector<std::string>* out) const {
    std::vector<std::string> items;
    if (is_value() && node_.value.is_array()) {
      for (const Json& item : node_.value) {
        if (!item.is_string()) return wrong_type("put each item in quotes");
        items.push_back(item.get<std::string>());
      }
    } else {
      items.push_back(TRY(text()));
    }
    for (const std::string& item : items) TRY(in_choices(item));
    *out = std::move(items);
    return {};
  }
  Result<> operator()(std::vector<double>* out) const {
    if (!is_value() || !node_.value.is_array()) return wrong_type("write [a, b]");
    std::vector<double> items;
    for (const Json& item : node_.value) items.push_back(TRY(number(item)));
    if (field_.num_items != 0 && items.size() != field_.num_items) {
      return problem(fmt::format("must have {} items, but has {}", field_.num_items, items.size()), "");
    }
    *out = std::move(items);
    return {};
  }
  Result<> operator()(std::vector<int64_t>* out) const {
    if (!is_value() || !node_.value.is_array()) return wrong_type("write [1, 2]");
    std::vector<int64_t> items;
    for (const Json& item : node_.value) {
      if (!item.is_number_integer()) return wrong_type("write [1, 2]");
      items.push_back(item.get<int64_t>());
      TRY(in_range(static_cast<double>(items.back())));
    }
    *out = std::move(items);
    return {};
  }
  Result<> operator()(Json* out) const {
    if (!node_.is_table()) return wrong_type("write it as a table: {name = value}");
    std::vector<Error> problems;
    Json object = node_to_json(node_, problems);
    if (!problems.empty()) return join_problems(std::move(problems));
    *out = std::move(object);
    return {};
  }

  Result<> operator()(const ChoiceRef& choice) const {
    std::vector<std::string> names;
    if (choice.shape == ChoiceRef::Shape::kList) {
      TRY((*this)(&names));
    } else if (choice.shape != ChoiceRef::Shape::kNullable || !is_null()) {
      names.push_back(TRY(text()));
    }
    std::vector<size_t> places;
    for (const std::string& name : names)
      places.push_back(static_cast<size_t>(std::ranges::find(choice.names, name) - choice.names.begin()));
    choice.write(places);
    return {};
  }

 private:
  [[nodiscard]] bool is_value() const { return node_.kind == ConfigNode::Kind::kValue; }
  [[nodiscard]] bool is_null() const { return is_value() && (node_.value.is_null() || node_.value == "null"); }

  [[nodiscard]] Error problem(std::string_view what, std::string next) const {
    return {ErrorKind::kConfig, fmt::format("'{}' {}", field_.key, what), node_.where, std::move(next)};
  }
  // What to write in place of a value of another type, as far as the type says it.
  [[nodiscard]] std::string right_form() const {
    const std::string type = field_.type_name();
    if (is_null()) return type.starts_with("list") ? "write [] for an empty list" : "leave it out for its default";
    if (type.starts_with("integer")) return "write a whole number without quotes";
    return type.starts_with("number") ? "write a number without quotes" : "";
  }
  // `next` empty: right_form().
  [[nodiscard]] Error wrong_type(std::string next) const {
    if (next.empty()) next = right_form();
    return problem(fmt::format("must be of type {}, but is {}", field_.type_name(), node_.describe()), std::move(next));
  }

  [[nodiscard]] Result<> in_range(double value) const {
    const bool low = field_.min_is_open ? value <= field_.min : value < field_.min;
    const bool high = field_.max_is_open ? value >= field_.max : value > field_.max;
    if (!std::isfinite(value)) return problem("must be a finite number", "");
    if (!low && !high) return {};
    return problem(fmt::format("must be {}, but is {}", field_.range_text(), node_.describe()), "");
  }

  [[nodiscard]] Result<> in_choices(const std::string& value) const {
    if (field_.choices.empty() || std::ranges::find(field_.choices, value) != field_.choices.end()) return {};
    std::string next = did_you_mean(value, field_.choices);
    return problem(fmt::format("must be {}, but is {}", field_.range_text(), quote(value)), std::move(next));
  }

  [[nodiscard]] Result<int64_t> integer() const {
    if (!is_value() || !node_.value.is_number_integer()) return wrong_type("");
    const auto value = node_.value.get<int64_t>();
    TRY(in_range(static_cast<double>(value)));
    return value;
  }

  [[nodiscard]] Result<double> number(const Json& json) const {
    if (!json.is_number()) return wrong_type("");
    const auto value = json.get<double>();
    TRY(in_range(value));
    return value;
  }

  [[nodiscard]] bool is_choice(const std::string& value) const {
    return std::find(field_.choices.begin(), field_.choices.end(), value) != field_.choices.end();
  }

  // A text. An override gives what was typed, so that `data.prompt_key=1` needs no quotes.
  [[nodiscard]] Result<std::string> text() const {
    if (!is_value()) return wrong_type("");
    std::string value;
    if (node_.value.is_string()) {
      value = node_.value.get<std::string>();
    } else if (!node_.raw.empty() && !node_.value.is_array() && (!node_.value.is_null() || is_choice(node_.raw))) {
      value = node_.raw;  // `none` is a choice of some keys, and null for the others
    } else if (field_.takes_number && node_.value.is_number()) {
      value = node_.value.dump();
    } else {
      return wrong_type(node_.value.is_array() || node_.value.is_null() ? "" : "put it in quotes");
    }
    TRY(in_choices(value));
    TRY(plugin_is_named(value));
    return field_.is_place ? expand_home(value) : value;
  }

  // A login is left out of what is shown of a URL (foundation/base/secrets.h), so the text would no longer say the same.
  [[nodiscard]] Result<> plugin_is_named(const std::string& value) const {
    if (field_.plugin_kind.empty() || value.find("://") == std::string::npos) return {};
    return problem("must be the name of a plugin, but is a URL",
                   "install its pack with `mortise pack install`, and write the plugin's name");
  }

  const Field& field_;
  const ConfigNode& node_;
};

}  // namespace

Result<> assign_value(const Field& field, const FieldRef& ref, const ConfigNode& node) {
  return std::visit(Assigner(field, node), ref);
}

}  // namespace mortise
