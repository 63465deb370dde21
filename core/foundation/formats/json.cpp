// Strict JSON on nlohmann's event parser. Own handler, for what its tree builder lacks: duplicate keys, a depth limit,
// positions, and objects built in linear time (its ordered objects compare a new key with every earlier one).
#include "foundation/formats/json.h"

#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "foundation/base/text.h"

template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace mortise {
namespace {

// Reads the text and keeps count of the bytes taken, so that the handler knows where it is.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* count_;
};

struct Problem {
  std::string what;
  size_t offset = 0;
};

// What nlohmann says, without its prefix: "syntax error while parsing value - unexpected end of input; expected ...".
std::string plain_words(std::string_view what) {
  if (const size_t bracket = what.find("] "); what.starts_with('[') && bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  if (what.starts_with("parse error")) {
    const size_t colon = what.find(": ");
    if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
  }
  std::string plain;
  for (const char c : what) plain += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return plain;
}

class Builder {
 public:
  Builder(int max_depth, const size_t* consumed) : max_depth_(max_depth), consumed_(consumed) {}

  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t&) { return fail("binary value"); }
  bool start_object(size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    Frame& frame = stack_.back();
    auto& members = frame.node->get_ref<Json::object_t&>();
    bool seen = false;
    if (members.size() < kLinearKeys) {
      for (const auto& member : members) seen = seen || member.first == name;
    } else {
      if (frame.keys.empty()) {
        for (const auto& member : members) frame.keys.insert(member.first);
      }
      seen = !frame.keys.insert(name).second;
    }
    if (seen) return fail("duplicate key " + quote(name));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& problem) {
    problem_ = Problem{plain_words(problem.what()), position};
    return false;
  }

  Json take() { return std::move(root_); }
  [[nodiscard]] const std::optional<Problem>& problem() const { return problem_; }

 private:
  static constexpr size_t kLinearKeys = 16;  // up to here comparing is cheaper than hashing
  struct Frame {
    Json* node;
    std::unordered_set<std::string> keys;
  };

  Json* place(Json&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back().node;
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    // The vector below ordered_map: its own emplace would look for the key again.
    using Members = std::vector<std::pair<const std::string, Json>, Json::object_t::allocator_type>;
    auto& members = static_cast<Members&>(parent.get_ref<Json::object_t&>());
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool put(Json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(Json&& value) {
    if (static_cast<int>(stack_.size()) >= max_depth_)
      return fail("nested deeper than " + std::to_string(max_depth_) + " levels");
    stack_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }
  bool fail(std::string what) {
    problem_ = Problem{std::move(what), *consumed_};
    return false;
  }

  int max_depth_;
  const size_t* consumed_;
  Json root_;
  std::vector<Frame> stack_;
  std::string key_;
  std::optional<Problem> problem_;
};

Error type_error(std::string_view key, std::string_view wanted, const Json* found, std::string_view where) {
  const std::string what = found == nullptr
                               ? "key " + quote(key) + " is missing"
                               : "key " + quote(key) + " must be " + std::string(wanted) + ", is " + found->type_name();
  return {ErrorKind::kData, what, std::string(where), ""};
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, const JsonOptions& options) {
  size_t consumed = 0;
  Builder builder(options.max_depth, &consumed);
  std::optional<Problem> problem;
  try {
    const bool ok = Json::sax_parse(CountingIterator(text.data(), &consumed),
                                    CountingIterator(text.data() + text.size(), &consumed), &builder);
    if (!ok) problem = builder.problem().value_or(Problem{"not JSON", consumed});
  } catch (const std::exception& thrown) {  // out of memory, or an error of the library's own
    problem = Problem{thrown.what(), consumed};
  }
  // The library takes a NUL byte for the end of its input; in JSON there is none.
  const size_t nul = problem ? std::string_view::npos : text.find('\0');
  if (nul != std::string_view::npos) problem = Problem{"a NUL byte", nul + 1};
  if (!problem) return builder.take();
  const size_t offset = problem->offset > 0 ? problem->offset - 1 : 0;
  if (options.error_offset != nullptr) *options.error_offset = offset;
  const TextPosition position = text_position(text, offset);
  return Error{options.error_kind, problem->what,
               std::string(where) + ":" + std::to_string(position.line + options.first_line - 1) + ":" +
                   std::to_string(position.column),
               "correct the JSON there"};
}

Result<Json> read_json_file(Env& env, const Path& path, const JsonOptions& options) {
  const std::string text = TRY(env.read_file(path, limits::kMaxTextFileBytes));
  return parse_json(text, path.string(), options);
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

const Json* json_find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  for (const auto& member : object.get_ref<const Json::object_t&>()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

Result<std::string> json_string(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_string()) return type_error(key, "a string", value, where);
  return value->get_ref<const std::string&>();
}

Result<int64_t> json_int(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits) return type_error(key, "an integer of 64 bits", value, where);
  return value->get<int64_t>();
}

Result<double> json_double(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_number()) return type_error(key, "a number", value, where);
  return value->get<double>();
}

Result<bool> json_bool(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_boolean()) return type_error(key, "true or false", value, where);
  return value->get<bool>();
}

}  // namespace mortise
