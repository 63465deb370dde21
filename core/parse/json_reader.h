// How json.cpp and json_ordered.cpp read: nlohmann's event parser with handlers of our own, for what its tree builder
// lacks: limits, duplicate keys, positions, and ordered objects built in linear time. Included by those two files only.
//
// Memory. A value that would take more than 64 MiB and 4 times its text is refused; of the engine's own readers, which
// read the files of models and runs, more than 64 MiB and 8 times: the largest vocabularies take 7 times their text
// (parse_memory_test.cpp measures). What takes the most is a list of small numbers: 24 times its text while it grows. So
// no text of less than 1 MiB is refused for its memory. While it reads, the parser has buffers of its own, of up to 5
// times the longest string: all holds for texts whose strings are shorter than 64 MiB. CBOR is not bounded by its size:
// it comes from our own files and processes, and a byte of it may be a whole value.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Reads the text and counts the consumed bytes, so that the handler knows its position.
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

inline constexpr std::size_t kJsonBaseBytes = 67'108'864 - 65'536;  // the rest is for the parser itself
inline constexpr std::size_t kJsonBytesPerByte = 4;
inline constexpr std::size_t kOrderedJsonBytesPerByte = 8;

// What malloc takes for a block of so many bytes, with its own words.
constexpr std::size_t heap_bytes(std::size_t size) {
  constexpr std::size_t kAlign = 16, kHeader = 8, kLeast = 32;
  const std::size_t block = (size + kHeader + kAlign - 1) / kAlign * kAlign;
  return block < kLeast ? kLeast : block;
}

// Counts depth, values and the memory that they take, and stops the parser at the first that exceeds a limit. The count
// of memory is an upper bound for both kinds of objects, so that all readers refuse the same texts.
class JsonEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit JsonEvents(const JsonLimits& limits) : limits_(limits) {}

  // The memory that a value of this text may take.
  void bound_memory(std::size_t text_bytes, bool is_ordered) {
    max_bytes_ = kJsonBaseBytes + (is_ordered ? kOrderedJsonBytesPerByte : kJsonBytesPerByte) * text_bytes;
  }

  std::size_t consumed = 0;  // bytes that the parser has taken
  std::optional<JsonFault> fault;

  bool binary(binary_t&) { return fail(JsonFault::Kind::kSyntax, "binary value"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& problem) {
    consumed = position;
    return fail(JsonFault::Kind::kSyntax, plain_words(problem.what()));
  }

 protected:
  // A value that takes so many bytes next to its place in a list or an object.
  bool count(std::size_t own_bytes = 0) {
    if (++num_values_ > limits_.max_values)
      return fail(JsonFault::Kind::kLimit, "more than " + std::to_string(limits_.max_values) + " values");
    return charge(own_bytes) && (levels_.empty() || count_item(levels_.back()));
  }
  // A number that the parser could only read as a double, and its text.
  bool check_float(const string_t& text) {
    constexpr std::size_t kShownDigits = 40;
    if (!limits_.exact_integers || text.find_first_of(".eE") != string_t::npos) return true;
    const std::string shown = text.size() > kShownDigits ? text.substr(0, kShownDigits) + "..." : text;
    return fail(JsonFault::Kind::kLimit,
                "the integer " + shown + " has more than 64 bits; write it in quotes, as text");
  }
  bool count_text(const string_t& text) { return count(heap_bytes(sizeof(string_t)) + text_bytes(text)); }
  bool count_key(const string_t& name) {
    // An ordered object also keeps a list of its keys while it is read.
    const std::size_t helper = heap_bytes(kKeyNode) + 2 * sizeof(void*) + text_bytes(name);
    levels_.back().helper_bytes += helper;
    return charge(helper + text_bytes(name));
  }
  bool enter(bool is_object) {
    if (static_cast<int>(levels_.size()) >= limits_.max_depth)
      return fail(JsonFault::Kind::kLimit, "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    if (!count(heap_bytes(is_object ? sizeof(nlohmann::json::object_t) : sizeof(nlohmann::json::array_t))))
      return false;
    levels_.push_back({is_object});
    return true;
  }
  void leave() {
    bytes_ -= levels_.back().helper_bytes;
    open_items_ -= levels_.back().num_items;
    levels_.pop_back();
  }
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

  static constexpr std::size_t kItem = sizeof(nlohmann::json);
  static constexpr std::size_t kMember = sizeof(std::pair<const std::string, nlohmann::json>);  // in an ordered object
  static constexpr std::size_t kMapNode = kMember + 4 * sizeof(void*);
  static constexpr std::size_t kKeyNode = sizeof(std::string) + 2 * sizeof(void*);
  static_assert(heap_bytes(kMapNode) <= 2 * kMember);
  // The library deletes a value by way of a list of its items, and that list doubles.
  static constexpr std::size_t kToDelete = 3 * kItem;

  struct Level {
    bool is_object;
    std::size_t num_items = 0;
    std::size_t capacity = 0;  // capacity of the vector, which doubles
    std::size_t helper_bytes = 0;
  };

  static std::size_t text_bytes(const string_t& text) {
    constexpr std::size_t kInside = 15;  // a std::string holds them itself; a longer one has room for 30 at least
    return text.size() <= kInside ? 0 : heap_bytes((text.size() < 2 * kInside ? 2 * kInside : text.size()) + 1);
  }
  bool count_item(Level& level) {
    const std::size_t slot = level.is_object ? kMember : kItem;
    const std::size_t before = level.capacity;
    if (++level.num_items > before) level.capacity = before == 0 ? 1 : 2 * before;
    const bool grows = level.capacity > before;
    if (++open_items_ > most_open_items_) most_open_items_ = open_items_;
    const std::size_t moved = grows ? before * slot : 0;  // old and new stand side by side for a moment
    if (level.is_object) return charge(2 * kMember, moved);
    return charge(grows ? heap_bytes(level.capacity * slot) - moved : 0, moved);
  }
  bool charge(std::size_t more, std::size_t for_now = 0) {
    const std::size_t to_delete = most_open_items_ * kToDelete;
    if (bytes_ + more + (for_now > to_delete ? for_now : to_delete) > max_bytes_)
      return fail(JsonFault::Kind::kLimit, "the values take more than " + std::to_string(max_bytes_ >> 20) +
                                               " MiB of memory, too much for a text of this size");
    bytes_ += more;
    return true;
  }

  const JsonLimits& limits_;
  std::vector<Level> levels_;
  std::size_t num_values_ = 0;
  std::size_t open_items_ = 0, most_open_items_ = 0;  // items of all lists and objects around the current place
  std::size_t bytes_ = 0, max_bytes_ = SIZE_MAX;
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
  bool number_float(number_float_t value, const string_t& text) { return check_float(text) && put(value); }
  bool string(string_t& value) {
    if (!count_text(value)) return false;
    place(Value(static_cast<const string_t&>(value)));  // a copy has no spare room, and the parser keeps its buffer
    return true;
  }
  bool start_object(std::size_t) { return enter(/*is_object=*/true) && open(Value::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return enter(/*is_object=*/false) && open(Value::array()); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (kIsOrdered && is_known(stack_.back(), name))
      return fail(JsonFault::Kind::kDuplicateKey, "duplicate key " + quote(name));
    key_ = static_cast<const string_t&>(name);
    return count_key(name);
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

  // As the vector would, but values move: it copies them, as the key of a pair cannot move.
  template <class Members>
  static void grow(Members& list) {
    Members larger;
    larger.reserve(list.empty() ? 1 : 2 * list.size());
    for (auto& member : list) larger.emplace_back(member.first, std::move(member.second));
    list.swap(larger);
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
      if (list.size() == list.capacity()) grow(list);
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

// Runs the parser over the text with the handler, and describes the fault.
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
    // Our own files are CBOR: every byte of them may be a value.
    if (format == nlohmann::json::input_format_t::json)
      events.bound_memory(text.size(), std::is_same_v<Value, nlohmann::ordered_json>);
    const bool ok = Value::sax_parse(CountingIterator(text.data(), &events.consumed),
                                     CountingIterator(text.data() + text.size(), &events.consumed), &events, format);
    if (!ok) fault = events.fault.value_or(JsonFault{JsonFault::Kind::kSyntax, "not JSON", events.consumed, 1, 1});
  } catch (const std::bad_alloc&) {
    fault = JsonFault{JsonFault::Kind::kMemory, "there is no memory for the value", events.consumed, 1, 1};
  } catch (const std::exception& thrown) {  // an error of the library's own
    fault = JsonFault{JsonFault::Kind::kSyntax, thrown.what(), events.consumed, 1, 1};
  }
  // The library treats a NUL byte as the end of its input. JSON has no NUL.
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
