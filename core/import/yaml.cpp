// Builds the tree from libyaml's events, and reads plain scalars as OmegaConf does.
#include "import/yaml.h"

#include <fmt/core.h>

#include <yaml.h>

#include <charconv>
#include <map>

#include "foundation/base/limits.h"
#include "foundation/base/text.h"

namespace mortise {
namespace {

constexpr size_t kMaxNodes = 200'000;  // a file has a few hundred; aliases of aliases could make any number

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

// Digits with single signs and without underscores; parse_i64 and parse_f64 decide about the rest.
std::optional<std::string> number_text(std::string_view text) {
  if (text.empty() || std::string_view("+-.0123456789").find(text.front()) == std::string_view::npos) return {};
  std::string digits;
  for (const char character : text) {
    if (character != '_') digits += character;
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  return digits;
}

// The digits of `text` in the base, or nothing if it has others or too many.
std::optional<int64_t> digits_in(std::string_view text, int base) {
  if (text.starts_with('-')) return std::nullopt;  // the sign of a number stands in front of its prefix
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value, base);
  return code == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// "1:30" is 90.
std::optional<int64_t> sexagesimal(const std::string& text) {
  int64_t value = 0;
  for (const std::string_view part : split(text, ':')) {
    const auto digits = digits_in(part, 10);
    const bool is_first = part.data() == text.data();
    if (!digits || (!is_first && (part.size() > 2 || *digits > 59))) return std::nullopt;
    if (__builtin_mul_overflow(value, 60, &value) || __builtin_add_overflow(value, *digits, &value))
      return std::nullopt;
  }
  return value;
}

// The integers of YAML 1.1 that decimal digits do not show: 0x10, 0b11, 010 (8), 1:30 (90). A text if the digits do not fit,
// as in 09. Nothing for all other scalars.
std::optional<Json> integer_in_other_form(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  std::string digits;
  for (const char character : text.substr(is_negative || text.starts_with('+') ? 1 : 0)) {
    if (character != '_') digits += character;
  }
  const bool has_digits_only = digits.find_first_not_of("0123456789") == std::string::npos;
  std::optional<int64_t> value;
  if (digits.starts_with("0x")) {
    value = digits_in(std::string_view(digits).substr(2), 16);
  } else if (digits.starts_with("0b")) {
    value = digits_in(std::string_view(digits).substr(2), 2);
  } else if (digits.starts_with('0') && digits.size() > 1 && has_digits_only) {
    value = digits_in(digits, 8);
  } else if (!digits.starts_with('0') && digits.find(':') != std::string::npos) {
    value = sexagesimal(digits);
  } else {
    return std::nullopt;
  }
  if (!value) return Json(std::string(text));
  return Json(is_negative ? -*value : *value);
}

struct Event {
  yaml_event_t raw{};
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&raw); }
};

std::string text_of(const yaml_char_t* text) { return text == nullptr ? "" : reinterpret_cast<const char*>(text); }

class YamlReader {
 public:
  YamlReader(std::string_view text, std::string_view where) : where_(where) {
    ready_ = yaml_parser_initialize(&parser_) == 1;
    if (ready_)
      yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlReader() {
    if (ready_) yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  Result<ConfigNode> read() {
    if (!ready_) return Error{ErrorKind::kInternal, "the YAML parser could not be set up", where_, ""};
    ConfigNode root = ConfigNode::table(where_);
    for (bool has_document = false;;) {
      Event event;
      TRY(next(event));
      if (event.raw.type == YAML_STREAM_END_EVENT) return root;
      if (event.raw.type != YAML_DOCUMENT_START_EVENT) continue;  // stream start, document end
      if (has_document) return bad("a second document", event.raw.start_mark, "keep one");
      has_document = true;
      Event first;
      TRY(next(first));
      root = TRY(node(first, 0));
    }
  }

 private:
  Error bad(std::string what, const yaml_mark_t& mark, std::string then = "") const {
    return {ErrorKind::kConfig, std::move(what), place(mark), std::move(then)};
  }

  [[nodiscard]] std::string place(const yaml_mark_t& mark) const {
    return fmt::format("{}:{}:{}", where_, mark.line + 1, mark.column + 1);
  }

  Result<> next(Event& event) {
    if (yaml_parser_parse(&parser_, &event.raw) == 1) return {};
    std::string what = parser_.problem == nullptr ? "no YAML" : parser_.problem;
    if (parser_.context != nullptr) what = fmt::format("{}: {}", parser_.context, what);
    return bad("YAML: " + what, parser_.problem_mark, "fix the line");
  }

  Result<ConfigNode> node(const Event& event, int depth) {
    if (depth > limits::kMaxJsonDepth) return bad("nested too deeply", event.raw.start_mark);
    if (++num_nodes_ > kMaxNodes) return bad("too many values, aliases counted", event.raw.start_mark);
    switch (event.raw.type) {
      case YAML_SCALAR_EVENT:
        return anchored(event.raw.data.scalar.anchor, TRY(scalar(event)));
      case YAML_SEQUENCE_START_EVENT:
        return anchored(event.raw.data.sequence_start.anchor, TRY(sequence(event, depth)));
      case YAML_MAPPING_START_EVENT:
        return anchored(event.raw.data.mapping_start.anchor, TRY(mapping(event, depth)));
      case YAML_ALIAS_EVENT:
        return alias(event);
      default:
        return bad("no value", event.raw.start_mark);
    }
  }

  struct Anchored {
    ConfigNode node;
    size_t num_nodes;
  };

  ConfigNode anchored(const yaml_char_t* anchor, ConfigNode node) {
    if (anchor != nullptr) anchors_[text_of(anchor)] = {node, count(node)};
    return node;
  }

  static size_t count(const Json& value) {
    size_t total = 1;
    if (value.is_array()) {
      for (const Json& item : value) total += count(item);
    }
    return total;
  }

  static size_t count(const ConfigNode& node) {
    size_t total = count(node.value);
    for (const auto& [key, child] : node.entries) total += count(child);
    for (const ConfigNode& item : node.items) total += count(item);
    return total;
  }

  Result<ConfigNode> alias(const Event& event) {
    const auto found = anchors_.find(text_of(event.raw.data.alias.anchor));
    if (found == anchors_.end()) return bad("an alias of nothing", event.raw.start_mark);
    num_nodes_ += found->second.num_nodes;
    if (num_nodes_ > kMaxNodes) return bad("too many values, aliases counted", event.raw.start_mark);
    ConfigNode copy = found->second.node;
    copy.where = place(event.raw.start_mark);
    return copy;
  }

  Result<ConfigNode> scalar(const Event& event) {
    const auto& data = event.raw.data.scalar;
    ConfigNode node;
    node.where = place(event.raw.start_mark);
    node.raw.assign(reinterpret_cast<const char*>(data.value), data.length);
    const std::string tag = text_of(data.tag);
    constexpr std::string_view kCore = "tag:yaml.org,2002:";
    const bool is_core =
        tag.starts_with(kCore) && is_one_of(tag.substr(kCore.size()), {"str", "int", "float", "bool", "null"});
    if (!tag.empty() && tag != "!" && !is_core)
      return bad(fmt::format("the tag {} is not known", quote(tag)), event.raw.start_mark, "write the plain value");
    const bool as_text =
        data.style != YAML_PLAIN_SCALAR_STYLE || tag == "!" || tag == std::string("tag:yaml.org,2002:str");
    node.value = as_text ? Json(node.raw) : integer_in_other_form(node.raw).value_or(yaml_scalar(node.raw));
    return node;
  }

  Result<ConfigNode> sequence(const Event& start, int depth) {
    ConfigNode list;
    list.where = place(start.raw.start_mark);
    list.value = Json::array();
    bool has_tables = false;
    for (;;) {
      Event event;
      TRY(next(event));
      if (event.raw.type == YAML_SEQUENCE_END_EVENT) break;
      list.items.push_back(TRY(node(event, depth + 1)));
      has_tables |= list.items.back().kind != ConfigNode::Kind::kValue;
    }
    if (has_tables) {
      list.kind = ConfigNode::Kind::kList;
      list.value = Json();
    } else {
      for (ConfigNode& item : list.items) list.value.push_back(std::move(item.value));
      list.items.clear();
    }
    return list;
  }

  Result<ConfigNode> mapping(const Event& start, int depth) {
    ConfigNode table = ConfigNode::table(place(start.raw.start_mark));
    std::vector<ConfigNode> merged;
    for (;;) {
      Event key;
      TRY(next(key));
      if (key.raw.type == YAML_MAPPING_END_EVENT) break;
      if (key.raw.type != YAML_SCALAR_EVENT) return bad("a key must be a text", key.raw.start_mark);
      const auto& data = key.raw.data.scalar;
      const std::string name(reinterpret_cast<const char*>(data.value), data.length);
      Event event;
      TRY(next(event));
      ConfigNode value = TRY(node(event, depth + 1));
      if (name == "<<" && data.style == YAML_PLAIN_SCALAR_STYLE) {
        if (!value.is_table()) return bad("<< needs a table", key.raw.start_mark, "eg: <<: *defaults");
        merged.push_back(std::move(value));
        continue;
      }
      if (table.find(name) != nullptr)
        return bad(quote(name) + " is set twice", key.raw.start_mark, "remove one of them");
      value.where = place(key.raw.start_mark);
      table.entries.emplace_back(name, std::move(value));
    }
    for (ConfigNode& below : merged) {
      for (auto& [name, value] : below.entries) {
        if (table.find(name) == nullptr) table.entries.emplace_back(name, std::move(value));
      }
    }
    return table;
  }

  std::string where_;
  yaml_parser_t parser_{};
  bool ready_ = false;
  std::map<std::string, Anchored> anchors_;
  size_t num_nodes_ = 0;
};

}  // namespace

Json yaml_scalar(std::string_view text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return Json();
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) return false;
  if (const std::optional<std::string> digits = number_text(text)) {
    if (const auto whole = parse_i64(*digits)) return *whole;
    // "1." and ".5" are numbers in YAML.
    std::string full = *digits;
    if (full.ends_with('.')) full += "0";
    if (full.starts_with('.')) full.insert(0, "0");
    if (full.starts_with("-.")) full.insert(1, "0");
    if (const auto number = parse_f64(full)) return *number;
  }
  return std::string(text);
}

Result<ConfigNode> parse_yaml(std::string_view text, std::string_view where) {
  if (const auto at = find_invalid_utf8(text)) {
    const TextPosition position = text_position(text, *at);
    return Error{ErrorKind::kConfig, "no UTF-8 text", fmt::format("{}:{}", where, position.line), ""};
  }
  return YamlReader(text, where).read();
}

}  // namespace mortise
