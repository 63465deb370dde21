// How json.cpp and json_ordered.cpp read: nlohmann's event parser with handlers of our own, for what its tree builder
// lacks: limits, duplicate keys, positions, and ordered objects built in linear time. Included by those two files only.
#pragma once

#include <cstddef>
#include <exception>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parse/json.h"
#include "parse/text.h"

namespace mortise::parse {

// Reads the text and keeps count of the bytes taken, so that the handler knows where it is.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* count) : at_(at), count_(count) {}
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
  std::size_t* count_;
};

// Counts depth and values, and stops the parser at the first that exceeds a limit.
class JsonEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit JsonEvents(const JsonLimits& limits) : limits_(limits) {}

  std::size_t consumed = 0;  // bytes that the parser has taken
  std::optional<JsonFault> fault;

  bool binary(binary_t&) { return fail(JsonFault::Kind::kSyntax, "binary value"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& problem) {
    consumed = position;
    return fail(JsonFault::Kind::kSyntax, plain_words(problem.what()));
  }

 protected:
  bool count() {
    if (++num_values_ <= limits_.max_values) return true;
    return fail(JsonFault::Kind::kLimit, "more than " + std::to_string(limits_.max_values) + " values");
  }
  bool enter() {
    if (depth_ >= limits_.max_depth)
      return fail(JsonFault::Kind::kLimit, "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    ++depth_;
    return count();
  }
  void leave() { --depth_; }
  bool fail(JsonFault::Kind kind, std::string what) {
    fault = JsonFault{kind, std::move(what), consumed, 1, 1};
    return false;
  }

 private:
  // What nlohmann says, without its prefix: "syntax error while parsing value - unexpected end of input; expected ...".
  // It repeats the whole token that it read last, so a long message loses its middle.
  static std::string plain_words(std::string_view what) {
    if (const std::size_t bracket = what.find("] ");
        !what.empty() && what.front() == '[' && bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    if (what.compare(0, 11, "parse error") == 0) {
      const std::size_t colon = what.find(": ");
      if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
    }
    std::string plain(what.substr(0, kMaxShownFaultBytes));
    for (char& c : plain)
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    if (what.size() > plain.size()) {
      plain.resize(find_invalid_utf8(plain).value_or(plain.size()));
      plain += "...";
    }
    return plain;
  }

  const JsonLimits& limits_;
  int depth_ = 0;
  std::size_t num_values_ = 0;
};

// Builds the value.
template <class Value>
class JsonBuilder : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool start_object(std::size_t) { return open(Value::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Value::array()); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (kIsOrdered && is_known(stack_.back(), name))
      return fail(JsonFault::Kind::kDuplicateKey, "duplicate key " + quote(name));
    key_ = std::move(name);
    return true;
  }

  Value take() { return std::move(root_); }

 private:
  static constexpr bool kIsOrdered = !std::is_same_v<Value, nlohmann::json>;
  static constexpr std::size_t kLinearKeys = 16;  // up to here comparing is cheaper than hashing
  struct Frame {
    Value* node;
    std::unordered_set<std::string> keys;
  };

  static bool is_known(Frame& frame, const std::string& name) {
    const auto& members = frame.node->template get_ref<const typename Value::object_t&>();
    if (members.size() < kLinearKeys) {
      for (const auto& member : members)
        if (member.first == name) return true;
      return false;
    }
    if (frame.keys.empty())
      for (const auto& member : members) frame.keys.insert(member.first);
    return !frame.keys.insert(name).second;
  }

  Value* place(Value&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Value& parent = *stack_.back().node;
    if (parent.is_array()) {
      auto& items = parent.template get_ref<typename Value::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    auto& members = parent.template get_ref<typename Value::object_t&>();
    if constexpr (kIsOrdered) {
      // The vector below ordered_map: its own emplace would look for the key again.
      using Members = std::vector<std::pair<const std::string, Value>, typename Value::object_t::allocator_type>;
      auto& list = static_cast<Members&>(members);
      list.emplace_back(std::move(key_), std::move(value));
      return &list.back().second;
    } else {
      Value& member = members[std::move(key_)];
      member = std::move(value);
      return &member;
    }
  }
  bool put(Value&& value) {
    if (!count()) return false;
    place(std::move(value));
    return true;
  }
  bool open(Value&& value) {
    if (!enter()) return false;
    stack_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    leave();
    stack_.pop_back();
    return true;
  }

  Value root_;
  std::vector<Frame> stack_;
  std::string key_;
};

// Runs the parser over the text with the handler, and says what is wrong.
template <class Value, class Events>
std::optional<JsonFault> run_parser(std::string_view text, const JsonLimits& limits, Events& events,
                                    nlohmann::json::input_format_t format = nlohmann::json::input_format_t::json) {
  std::optional<JsonFault> fault;
  try {
    if (text.size() > limits.max_bytes) {
      return JsonFault{JsonFault::Kind::kLimit,
                       "the text has " + std::to_string(text.size()) + " bytes, at most " +
                           std::to_string(limits.max_bytes) + " are allowed",
                       0, 1, 1};
    }
    const bool ok = Value::sax_parse(CountingIterator(text.data(), &events.consumed),
                                     CountingIterator(text.data() + text.size(), &events.consumed), &events, format);
    if (!ok) fault = events.fault.value_or(JsonFault{JsonFault::Kind::kSyntax, "not JSON", events.consumed, 1, 1});
  } catch (const std::bad_alloc&) {
    fault = JsonFault{JsonFault::Kind::kMemory, "there is no memory for the value", events.consumed, 1, 1};
  } catch (const std::exception& thrown) {  // an error of the library's own
    fault = JsonFault{JsonFault::Kind::kSyntax, thrown.what(), events.consumed, 1, 1};
  }
  // The library takes a NUL byte for the end of its input; in JSON there is none.
  const bool is_text = format == nlohmann::json::input_format_t::json;
  const std::size_t nul = fault || !is_text ? std::string_view::npos : text.find('\0');
  if (nul != std::string_view::npos) fault = JsonFault{JsonFault::Kind::kSyntax, "a NUL byte", nul + 1, 1, 1};
  if (!fault) return fault;
  if (fault->offset > 0) --fault->offset;
  const TextPosition position = text_position(text, fault->offset);
  fault->line = position.line;
  fault->column = position.column;
  return fault;
}

template <class Value>
Outcome<Value, JsonFault> read_value(std::string_view text, const JsonLimits& limits,
                                     nlohmann::json::input_format_t format = nlohmann::json::input_format_t::json) {
  JsonBuilder<Value> builder(limits);
  if (auto fault = run_parser<Value>(text, limits, builder, format)) return *std::move(fault);
  return builder.take();
}

}  // namespace mortise::parse
