// Checks the keywords of a schema once, and then values against it, with a limit on work.
#include "schema.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include <mortise/cpp/plugin.hpp>

namespace mortise {
namespace {

using Json = nlohmann::json;
using Names = std::set<std::string>;

constexpr int kMaxDepth = 200;
constexpr std::int64_t kMaxWork = 2'000'000;

const Names& annotations() {
  static const Names names = {"title",   "description", "default",     "examples",        "$comment",
                              "$schema", "$id",         "deprecated",  "readOnly",        "writeOnly",
                              "format",  "$defs",       "definitions", "contentEncoding", "contentMediaType"};
  return names;
}
// Their value is a schema; a list of schemas; schemas by name; a whole number; a number.
const Names& of_schema() {
  static const Names names = {"items", "contains", "additionalProperties", "propertyNames", "not", "if",
                              "then",  "else"};
  return names;
}
const Names& of_list() {
  static const Names names = {"prefixItems", "allOf", "anyOf", "oneOf"};
  return names;
}
const Names& of_named() {
  static const Names names = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"};
  return names;
}
const Names& of_count() {
  static const Names names = {"minLength",   "maxLength",   "minItems",      "maxItems",
                              "minContains", "maxContains", "minProperties", "maxProperties"};
  return names;
}
const Names& of_number() {
  static const Names names = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
  return names;
}

bool is_whole(const Json& v) {
  return v.is_number_integer() || (v.is_number_float() && std::floor(v.get<double>()) == v.get<double>());
}

bool has_type(const Json& v, const std::string& type) {
  if (type == "integer") return is_whole(v);
  if (type == "number") return v.is_number();
  if (type == "string") return v.is_string();
  if (type == "boolean") return v.is_boolean();
  if (type == "null") return v.is_null();
  if (type == "array") return v.is_array();
  return type == "object" && v.is_object();
}

std::size_t length_of(const std::string& text) {
  return std::size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_multiple(double x, double of) {
  const double ratio = x / of;
  return std::isfinite(ratio) && std::abs(ratio - std::round(ratio)) <= 1e-9 * std::max(1.0, std::abs(ratio));
}

// The part of a JSON pointer that names a member.
std::string step_name(const std::string& key) { return (Json::json_pointer() / key).to_string(); }

// "%25" as "%"; nothing where a % has no two hexadecimal digits behind it.
std::optional<std::string> percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return {};
    out += char(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return out;
}

// What "#" or "#/..." names: a JSON pointer as the fragment of a URI (RFC 6901, 6). Null if nothing is there.
const Json* target_of(const Json& root, std::string_view reference) {
  const auto pointer = percent_decoded(reference.substr(1));
  if (!pointer) return nullptr;
  try {
    return &root.at(Json::json_pointer(*pointer));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

}  // namespace

Schema::Schema(nlohmann::json schema) : root_(std::move(schema)) {
  check(root_, "#");
  checked_.clear();
}

void Schema::check(const Json& schema, const std::string& at) {
  if (schema.is_boolean()) return;
  if (!schema.is_object()) fail(MORTISE_INVALID_ARGUMENT, at + ": a schema is an object, true or false");
  if (at.size() > 4000) fail(MORTISE_INVALID_ARGUMENT, "the schema is nested too deeply");
  if (!checked_.insert(&schema).second) return;
  constexpr int kDeepest = 1000;
  if (++depth_ > kDeepest) fail(MORTISE_INVALID_ARGUMENT, "schema at " + at + ": references are chained too deep");
  for (const auto& [key, value] : schema.items()) check_keyword(key, value, at + step_name(key));
  --depth_;
}

void Schema::check_keyword(const std::string& key, const Json& value, const std::string& at) {
  const auto refuse = [&](const std::string& why) { fail(MORTISE_INVALID_ARGUMENT, "schema at " + at + ": " + why); };
  const auto each_name = [&](const Json& list) {
    if (!list.is_array()) refuse("must be a list of names");
    for (const Json& name : list)
      if (!name.is_string()) refuse("must be a list of names");
  };
  if (of_schema().count(key) != 0) return check(value, at);
  if (of_list().count(key) != 0) {
    if (!value.is_array() || value.empty()) refuse("must be a list of schemas");
    for (std::size_t i = 0; i < value.size(); ++i) check(value[i], at + "/" + std::to_string(i));
  } else if (of_named().count(key) != 0) {
    if (!value.is_object()) refuse("must hold schemas by name");
    for (const auto& [name, inner] : value.items()) {
      if (key == "patternProperties") patterns_.try_emplace(name, name);
      check(inner, at + step_name(name));
    }
  } else if (of_count().count(key) != 0) {
    if (!is_whole(value) || value.get<double>() < 0) refuse("must be a whole number, 0 or more");
  } else if (of_number().count(key) != 0) {
    if (!value.is_number() || (key == "multipleOf" && value.get<double>() <= 0)) refuse("must be a number");
  } else if (key == "type") {
    static const Names types = {"integer", "number", "string", "boolean", "null", "array", "object"};
    for (const Json& one : value.is_array() ? value : Json::array({value}))
      if (!one.is_string() || types.count(one.get<std::string>()) == 0) refuse("no such type: " + one.dump());
  } else if (key == "enum") {
    if (!value.is_array()) refuse("must be a list");
  } else if (key == "required") {
    each_name(value);
  } else if (key == "dependentRequired") {
    if (!value.is_object()) refuse("must hold lists of names");
    for (const auto& [name, list] : value.items()) each_name(list);
  } else if (key == "uniqueItems") {
    if (!value.is_boolean()) refuse("must be true or false");
  } else if (key == "pattern") {
    if (!value.is_string()) refuse("must be a text");
    patterns_.try_emplace(value.get<std::string>(), value.get<std::string>());
  } else if (key == "$ref") {
    if (!value.is_string() || value.get<std::string>().compare(0, 1, "#") != 0)
      refuse("only references inside the schema (#, #/$defs/NAME) are followed");
    const std::string reference = value.get<std::string>();
    const Json* target = target_of(root_, reference);
    if (target == nullptr) refuse("there is nothing at " + reference);
    check(*target, reference);
  } else if (key != "const" && annotations().count(key) == 0) {
    refuse("the keyword is not known here (plugins/reward/rules/schema.h lists those that are)");
  }
}

// One validation. Every rule returns false at the first fault, and fault_ then has its place.
class Schema::Run {
 public:
  explicit Run(const Schema& schema) : schema_(schema) {}
  std::string fault;
  bool exceeded = false;  // a fault even where a fault is what `not`, `if` or `oneOf` ask for

  bool valid(const Json& schema, const Json& v, const std::string& at) {
    if (exceeded || ++depth_ > kMaxDepth || (work_ += 1) > kMaxWork) return give_up();
    const bool good = schema.is_boolean() ? schema.get<bool>() || wrong(at, "is not allowed") : rules(schema, v, at);
    --depth_;
    return good;
  }

 private:
  bool wrong(const std::string& at, const std::string& what) {
    fault = (at.empty() ? "the value" : at) + " " + what;
    return false;
  }
  bool give_up() {
    exceeded = true;
    return false;
  }
  // Without a word about a fault: for anyOf and the like.
  bool quietly(const Json& schema, const Json& v, const std::string& at) {
    const int depth = depth_;
    const std::string before = fault;
    const bool good = valid(schema, v, at);
    depth_ = depth;
    fault = before;
    return good;
  }

  bool rules(const Json& s, const Json& v, const std::string& at) {
    if (const auto ref = s.find("$ref"); ref != s.end()) {
      const Json* target = target_of(schema_.root_, ref->get_ref<const std::string&>());
      if (!valid(*target, v, at)) return false;
    }
    return general(s, v, at) && combined(s, v, at) && (!v.is_number() || number(s, v, at)) &&
           (!v.is_string() || text(s, v.get_ref<const std::string&>(), at)) && (!v.is_array() || array(s, v, at)) &&
           (!v.is_object() || object(s, v, at));
  }

  bool general(const Json& s, const Json& v, const std::string& at) {
    if (const auto type = s.find("type"); type != s.end()) {
      const Json types = type->is_array() ? *type : Json::array({*type});
      const auto fits = [&](const Json& t) { return has_type(v, t.get_ref<const std::string&>()); };
      if (std::none_of(types.begin(), types.end(), fits)) return wrong(at, "is no " + type->dump());
    }
    if (const auto one = s.find("const"); one != s.end() && v != *one) return wrong(at, "is not " + one->dump());
    const auto list = s.find("enum");
    if (list != s.end() && std::find(list->begin(), list->end(), v) == list->end()) return wrong(at, "is not in enum");
    return true;
  }

  bool combined(const Json& s, const Json& v, const std::string& at) {
    if (const auto all = s.find("allOf"); all != s.end()) {
      for (const Json& one : *all)
        if (!valid(one, v, at)) return false;
    }
    const auto count = [&](const Json& list) {
      return std::count_if(list.begin(), list.end(), [&](const Json& one) { return quietly(one, v, at); });
    };
    if (const auto any = s.find("anyOf"); any != s.end() && count(*any) == 0) return wrong(at, "fits none of anyOf");
    if (const auto one = s.find("oneOf"); one != s.end()) {
      const auto fitting = count(*one);
      if (fitting != 1) return wrong(at, "fits " + std::to_string(fitting) + " of oneOf");
    }
    if (const auto no = s.find("not"); no != s.end() && quietly(*no, v, at))
      return wrong(at, "fits what `not` forbids");
    if (const auto condition = s.find("if"); condition != s.end()) {
      const auto branch = s.find(quietly(*condition, v, at) ? "then" : "else");
      if (branch != s.end() && !valid(*branch, v, at)) return false;
    }
    return true;
  }

  bool number(const Json& s, const Json& v, const std::string& at) {
    const double x = v.get<double>();
    const auto bound = [&](const char* key, auto breaks) { return !s.contains(key) || !breaks(s[key]); };
    if (!bound("minimum", [&](const Json& b) { return v < b; })) return wrong(at, "is below minimum");
    if (!bound("maximum", [&](const Json& b) { return b < v; })) return wrong(at, "is above maximum");
    if (!bound("exclusiveMinimum", [&](const Json& b) { return !(b < v); }))
      return wrong(at, "is not above exclusiveMinimum");
    if (!bound("exclusiveMaximum", [&](const Json& b) { return !(v < b); }))
      return wrong(at, "is not below exclusiveMaximum");
    if (!bound("multipleOf", [&](const Json& b) { return !is_multiple(x, b.get<double>()); }))
      return wrong(at, "is no multiple of " + s["multipleOf"].dump());
    return true;
  }

  bool in_range(const Json& s, std::size_t count, const char* least, const char* most, const std::string& at) {
    if (s.contains(least) && double(count) < s[least].get<double>())
      return wrong(at, std::string("has less than ") + least);
    if (s.contains(most) && double(count) > s[most].get<double>())
      return wrong(at, std::string("has more than ") + most);
    return true;
  }

  bool text(const Json& s, const std::string& v, const std::string& at) {
    if (!in_range(s, length_of(v), "minLength", "maxLength", at)) return false;
    const auto pattern = s.find("pattern");
    if (pattern != s.end() && !schema_.patterns_.at(pattern->get<std::string>()).found_in(v))
      return wrong(at, "does not match " + pattern->dump());
    return true;
  }

  bool array(const Json& s, const Json& v, const std::string& at) {
    if (!in_range(s, v.size(), "minItems", "maxItems", at)) return false;
    std::size_t first = 0;
    if (const auto prefix = s.find("prefixItems"); prefix != s.end()) {
      for (; first < std::min(v.size(), prefix->size()); ++first)
        if (!valid((*prefix)[first], v[first], at + "/" + std::to_string(first))) return false;
    }
    if (const auto items = s.find("items"); items != s.end()) {
      for (std::size_t i = first; i < v.size(); ++i)
        if (!valid(*items, v[i], at + "/" + std::to_string(i))) return false;
    }
    if (const auto contains = s.find("contains"); contains != s.end()) {
      const auto count = std::size_t(
          std::count_if(v.begin(), v.end(), [&](const Json& item) { return quietly(*contains, item, at); }));
      const double least = s.contains("minContains") ? s["minContains"].get<double>() : 1;
      if (double(count) < least) return wrong(at, "holds too few of `contains`");
      if (s.contains("maxContains") && double(count) > s["maxContains"].get<double>())
        return wrong(at, "holds too many of `contains`");
    }
    if (!s.value("uniqueItems", false)) return true;
    for (std::size_t i = 0; i < v.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if ((work_ += 1) > kMaxWork) return give_up();
        if (v[i] == v[k]) return wrong(at, "holds an item twice");
      }
    }
    return true;
  }

  bool object(const Json& s, const Json& v, const std::string& at) {
    if (!in_range(s, v.size(), "minProperties", "maxProperties", at)) return false;
    if (const auto names = s.find("required"); names != s.end()) {
      for (const Json& name : *names)
        if (!v.contains(name.get<std::string>())) return wrong(at, "lacks " + name.dump());
    }
    for (const auto& [name, value] : v.items())
      if (!member(s, name, value, at + step_name(name))) return false;
    return dependent(s, v, at);
  }

  bool member(const Json& s, const std::string& name, const Json& value, const std::string& at) {
    if (s.contains("propertyNames") && !valid(s["propertyNames"], name, at)) return false;
    bool known = false;
    if (const auto own = s.find("properties"); own != s.end() && own->contains(name)) {
      known = true;
      if (!valid((*own)[name], value, at)) return false;
    }
    if (const auto patterns = s.find("patternProperties"); patterns != s.end()) {
      for (const auto& [pattern, schema] : patterns->items()) {
        if (!schema_.patterns_.at(pattern).found_in(name)) continue;
        known = true;
        if (!valid(schema, value, at)) return false;
      }
    }
    return known || !s.contains("additionalProperties") || valid(s["additionalProperties"], value, at);
  }

  bool dependent(const Json& s, const Json& v, const std::string& at) {
    if (const auto lists = s.find("dependentRequired"); lists != s.end()) {
      for (const auto& [name, needed] : lists->items()) {
        for (const Json& other : needed)
          if (v.contains(name) && !v.contains(other.get<std::string>())) return wrong(at, "lacks " + other.dump());
      }
    }
    if (const auto schemas = s.find("dependentSchemas"); schemas != s.end()) {
      for (const auto& [name, schema] : schemas->items())
        if (v.contains(name) && !valid(schema, v, at)) return false;
    }
    return true;
  }

  const Schema& schema_;
  int depth_ = 0;
  std::int64_t work_ = 0;
};

std::string Schema::fault(const nlohmann::json& value) const {
  Run run(*this);
  const bool good = run.valid(root_, value, "");
  if (run.exceeded) return "the value is nested too deeply or costs too much";
  return good ? "" : run.fault;
}

}  // namespace mortise
