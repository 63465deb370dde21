// Values of the template language: Python's, as far as templates need them.
//
// Copying a value copies a pointer. Lists and dicts do not change once a template sees them (the sandbox of
// transformers forbids it too), so sharing is safe. Namespaces and iterators do change. Integers have 127 bits; a
// larger result is an error. Strings are UTF-8; positions count code points.
// Thread rule: values belong to one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "foundation/base/result.h"
#include "text/template/live_bytes.h"

namespace mortise::jinja {

using Int = __int128;

class Value;
class Callable;
class Dict;
struct LoopState;

struct None {
  bool operator==(const None&) const = default;
};
constexpr size_t kObjectBytes = 64;  // what an object takes beyond its text or items
size_t bytes_of(const std::vector<Value>& items);

// Prints as nothing; most other uses fail with its message.
struct Undefined {
  std::string message;
  LiveBytes live = LiveBytes(message.size() + kObjectBytes);
};
struct Text {
  std::string text;
  LiveBytes live = LiveBytes(text.size() + kObjectBytes);
};
struct List {
  std::vector<Value> items;
  int depth = 1;  // how deeply it nests: a bound for walks over it, its destruction among them
  LiveBytes live = LiveBytes(bytes_of(items));
};
struct Tuple {
  std::vector<Value> items;
  std::vector<std::string> names;  // names in a named tuple; else empty
  int depth = 1;
  LiveBytes live = LiveBytes(bytes_of(items));
};
// What dict.items(), keys() and values() give: iterable, with a length, without positions.
struct View {
  std::string type_name;
  std::vector<Value> items;
  int depth = 1;
  LiveBytes live = LiveBytes(bytes_of(items));
};
// A generator: can be walked once.
struct Iterator {
  std::vector<Value> items;
  size_t next = 0;
  int depth = 1;
  std::optional<Error> error;  // the error for reading past the last item
  LiveBytes live = LiveBytes(bytes_of(items));
};
struct Range {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t length;
  bool operator==(const Range&) const = default;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> values;
};

enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,
  kIterator,
  kRange,
  kNamespace,
  kCallable,
  kLoop,
};

class Value {
 public:
  using Variant = std::variant<std::shared_ptr<const Undefined>, None, bool, Int, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const List>, std::shared_ptr<const Tuple>, std::shared_ptr<const Dict>,
                               std::shared_ptr<const View>, std::shared_ptr<Iterator>, Range,
                               std::shared_ptr<Namespace>, std::shared_ptr<const Callable>, std::shared_ptr<LoopState>>;

  Value() : data_(None{}) {}
  Value(None value) : data_(value) {}                      // NOLINT(google-explicit-constructor)
  Value(bool value) : data_(value) {}                      // NOLINT(google-explicit-constructor)
  Value(int value) : data_(Int{value}) {}                  // NOLINT(google-explicit-constructor)
  Value(int64_t value) : data_(Int{value}) {}              // NOLINT(google-explicit-constructor)
  Value(size_t value) : data_(static_cast<Int>(value)) {}  // NOLINT(google-explicit-constructor)
  Value(Int value) : data_(value) {}                       // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}                    // NOLINT(google-explicit-constructor)
  Value(std::string value) : data_(std::make_shared<const Text>(Text{std::move(value)})) {}  // NOLINT
  Value(std::string_view value) : Value(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Value(const char* value) : Value(std::string(value)) {}       // NOLINT(google-explicit-constructor)
  Value(Range value) : data_(value) {}                          // NOLINT(google-explicit-constructor)
  template <class Pointer>
  requires(std::constructible_from<Variant, Pointer> && !std::is_arithmetic_v<Pointer>) explicit Value(Pointer pointer)
      : data_(std::move(pointer)) {}

  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value iterator(std::vector<Value> items, std::optional<Error> error = std::nullopt);
  static Value undefined(std::string message);

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }
  [[nodiscard]] bool is(Kind kind) const { return this->kind() == kind; }
  [[nodiscard]] bool is_number() const { return is(Kind::kInt) || is(Kind::kFloat) || is(Kind::kBool); }
  [[nodiscard]] bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }

  // Each needs the kind to be right (integer and number: bool counts as one).
  [[nodiscard]] const Undefined& undefined_value() const { return *std::get<0>(data_); }
  [[nodiscard]] bool boolean() const { return std::get<bool>(data_); }
  [[nodiscard]] Int integer() const { return is(Kind::kBool) ? Int{boolean()} : std::get<Int>(data_); }
  [[nodiscard]] double number() const {
    return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
  }
  [[nodiscard]] const std::string& string() const { return std::get<std::shared_ptr<const Text>>(data_)->text; }
  [[nodiscard]] const List& list_value() const { return *std::get<std::shared_ptr<const List>>(data_); }
  [[nodiscard]] const Tuple& tuple_value() const { return *std::get<std::shared_ptr<const Tuple>>(data_); }
  [[nodiscard]] const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  [[nodiscard]] const View& view() const { return *std::get<std::shared_ptr<const View>>(data_); }
  [[nodiscard]] Iterator& iterator_value() const { return *std::get<std::shared_ptr<Iterator>>(data_); }
  [[nodiscard]] const Range& range() const { return std::get<Range>(data_); }
  [[nodiscard]] Namespace& name_space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  [[nodiscard]] const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  [[nodiscard]] LoopState& loop() const { return *std::get<std::shared_ptr<LoopState>>(data_); }
  // The same object (Python's `is`).
  [[nodiscard]] bool same_as(const Value& other) const;

 private:
  Variant data_;
};

// Ordered by insertion. Look-up: a walk while it is small, a hash table of the text keys beyond that.
class Dict {
 public:
  using Items = std::vector<std::pair<Value, Value>>;
  // An existing key keeps its place. Fails if the key is a list or dict.
  Result<> set(Value key, Value value);
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Items& items() const { return items_; }
  [[nodiscard]] size_t size() const { return items_.size(); }
  [[nodiscard]] int depth() const { return depth_; }

 private:
  Items items_;
  int depth_ = 1;
  std::unordered_map<std::string, size_t> index_;  // places of text keys, once there are many
  LiveBytes live_;
};

inline size_t bytes_of(const std::vector<Value>& items) { return items.size() * sizeof(Value) + kObjectBytes; }

// "str", "NoneType", "dict_items": the type's name as Python's error messages give it.
std::string type_name(const Value& value);
// "'dict object'", "None": how jinja's messages name an object, without the quotes.
std::string object_name(const Value& value);

// How deeply containers nest in it: 0 for what holds nothing.
int depth_of(const Value& value);
// 1 + that of the deepest item.
int depth_around(const std::vector<Value>& items);

Error type_error(std::string what);
Error undefined_error(const Value& value);

Result<bool> truth(const Value& value);
// ==, as Python: 1 == 1.0 == True; values of unlike types are unequal.
bool equals(const Value& a, const Value& b);
// a < b; `symbol` is the operator named when the two cannot be ordered.
Result<bool> less_than(const Value& a, const Value& b, std::string_view symbol);
// len(); an Error for a value without one.
Result<size_t> length_of(const Value& value);
// The items that a for loop sees. Uses an iterator up.
Result<std::vector<Value>> items_of(const Value& value);
// `needle in haystack`.
Result<bool> contains(const Value& haystack, const Value& needle);
Result<> check_hashable(const Value& value);

// str() and repr() of Python. repr nests at most so deep before it fails.
Result<std::string> to_text(const Value& value);
Result<std::string> to_repr(const Value& value, int depth = 0);
std::string float_text(double value);
std::string int_text(Int value);
std::string string_repr(std::string_view text);

}  // namespace mortise::jinja
