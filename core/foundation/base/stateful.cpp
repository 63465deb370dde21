// See stateful.h.
#include "foundation/base/stateful.h"

#include <fmt/core.h>
#include <algorithm>
#include <array>

#include "foundation/base/text.h"

namespace mortise {
namespace {

bool is_good_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

StateWriter::StateWriter(std::string object, StateSnapshot* snapshot)
    : object_(std::move(object)), snapshot_(snapshot) {
  snapshot_->scalars[object_];  // an object without scalars is still on record
}

bool StateWriter::take(std::string_view key) {
  if (keys_.insert(std::string(key)).second && !key.empty()) return true;
  if (problem_.empty()) problem_ = key.empty() ? "an empty key" : fmt::format("key {} twice", quote(key));
  return false;
}

void StateWriter::put(std::string_view key, StateScalar value) {
  if (take(key)) snapshot_->scalars[object_].emplace(std::string(key), std::move(value));
}

void StateWriter::put_bool(std::string_view key, bool value) { put(key, value); }
void StateWriter::put_int(std::string_view key, int64_t value) { put(key, value); }
void StateWriter::put_uint(std::string_view key, uint64_t value) { put(key, value); }
void StateWriter::put_double(std::string_view key, double value) { put(key, value); }

void StateWriter::put_text(std::string_view key, std::string_view utf8) {
  if (find_invalid_utf8(utf8) && problem_.empty())
    problem_ = fmt::format("key {} holds text that is not UTF-8", quote(key));
  put(key, std::string(utf8));
}

void StateWriter::put_bytes(std::string_view key, std::string bytes) {
  const std::string& kept = snapshot_->owned.emplace_back(std::move(bytes));
  const std::array<int64_t, 1> shape{static_cast<int64_t>(kept.size())};
  put_tensor(key, DType::kU8, shape, std::as_bytes(std::span(kept)));
}

void StateWriter::put_copy(std::string_view key, DType dtype, std::span<const std::byte> bytes) {
  const std::string& kept = snapshot_->owned.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::array<int64_t, 1> shape{static_cast<int64_t>(kept.size() / dtype_bytes(dtype))};
  put_tensor(key, dtype, shape, std::as_bytes(std::span(kept)));
}

// The texts one behind the other, and where each ends.
void StateWriter::put_texts(std::string_view key, const std::vector<std::string>& texts) {
  std::string joined;
  std::vector<int64_t> ends;
  for (const std::string& text : texts) {
    joined += text;
    ends.push_back(static_cast<int64_t>(joined.size()));
  }
  put_bytes(key, std::move(joined));
  put_vector(std::string(key) + ".ends", ends);
}

void StateWriter::put_tensor(std::string_view key, DType dtype, std::span<const int64_t> shape,
                             std::span<const std::byte> bytes) {
  if (!take(key)) return;
  const auto count = num_elements(shape);
  if ((!count || static_cast<uint64_t>(*count) * dtype_bytes(dtype) != bytes.size()) && problem_.empty())
    problem_ = fmt::format("tensor {} has {} bytes for shape {}", quote(key), bytes.size(), shape_text(shape));
  snapshot_->tensors.push_back(
      {fmt::format("{}/{}", object_, key), dtype, {shape.begin(), shape.end()}, bytes, nullptr});
}

void StateWriter::put_source(std::string_view key, DType dtype, std::span<const int64_t> shape,
                             std::shared_ptr<const TensorSource> source) {
  if (!take(key)) return;
  snapshot_->tensors.push_back(
      {fmt::format("{}/{}", object_, key), dtype, {shape.begin(), shape.end()}, {}, std::move(source)});
}

Result<> StateWriter::status() const {
  if (problem_.empty()) return {};
  return Error{ErrorKind::kInternal, fmt::format("state of '{}' wrote {}", object_, problem_), "", ""};
}

StateReader::StateReader(std::string object, const StateSnapshot* snapshot, std::string where)
    : object_(std::move(object)), snapshot_(snapshot), where_(std::move(where)) {}

Error StateReader::missing(std::string_view key) const {
  return {ErrorKind::kData, fmt::format("state '{}/{}' is missing", object_, key), where_,
          "the checkpoint is from another version or another setup; use an older one or start over"};
}

namespace {

const TensorView* find_tensor(const StateSnapshot& snapshot, const std::string& name) {
  const auto at =
      std::lower_bound(snapshot.tensors.begin(), snapshot.tensors.end(), name,
                       [](const TensorView& tensor, const std::string& wanted) { return tensor.name < wanted; });
  return at != snapshot.tensors.end() && at->name == name ? &*at : nullptr;
}

const StateScalar* find_scalar(const StateSnapshot& snapshot, const std::string& object, std::string_view key) {
  const auto values = snapshot.scalars.find(object);
  if (values == snapshot.scalars.end()) return nullptr;
  const auto value = values->second.find(std::string(key));
  return value == values->second.end() ? nullptr : &value->second;
}

}  // namespace

bool StateReader::has(std::string_view key) const {
  return find_scalar(*snapshot_, object_, key) != nullptr ||
         find_tensor(*snapshot_, fmt::format("{}/{}", object_, key)) != nullptr;
}

template <class T>
Result<T> StateReader::get(std::string_view key, std::string_view type) {
  const StateScalar* value = find_scalar(*snapshot_, object_, key);
  if (value == nullptr) return missing(key);
  read_.insert(std::string(key));
  if (const T* typed = std::get_if<T>(value)) return *typed;
  return Error{ErrorKind::kData, fmt::format("state '{}/{}' is not {}", object_, key, type), where_, ""};
}

Result<bool> StateReader::get_bool(std::string_view key) { return get<bool>(key, "a bool"); }
Result<int64_t> StateReader::get_int(std::string_view key) { return get<int64_t>(key, "an integer"); }
Result<uint64_t> StateReader::get_uint(std::string_view key) { return get<uint64_t>(key, "an unsigned integer"); }
Result<double> StateReader::get_double(std::string_view key) { return get<double>(key, "a float"); }
Result<std::string> StateReader::get_text(std::string_view key) { return get<std::string>(key, "a text"); }

Result<std::string> StateReader::get_bytes(std::string_view key) {
  const TensorView tensor = TRY(get_tensor(key));
  if (tensor.dtype != DType::kU8 || tensor.shape.size() != 1)
    return Error{ErrorKind::kData, fmt::format("state '{}' is not bytes", tensor.name), where_, ""};
  return std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
}

Result<std::span<const std::byte>> StateReader::get_copied(std::string_view key, DType dtype) {
  const TensorView tensor = TRY(get_tensor(key));
  if (tensor.dtype == dtype && tensor.shape.size() == 1) return tensor.bytes;
  return Error{ErrorKind::kData,
               fmt::format("state '{}' is {}{}, not a list of {}", tensor.name, dtype_name(tensor.dtype),
                           shape_text(tensor.shape), dtype_name(dtype)),
               where_, ""};
}

Result<std::vector<std::string>> StateReader::get_texts(std::string_view key) {
  const std::string joined = TRY(get_bytes(key));
  const auto ends = TRY(get_vector<int64_t>(std::string(key) + ".ends"));
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t end : ends) {
    if (end < static_cast<int64_t>(begin) || end > static_cast<int64_t>(joined.size())) break;
    texts.push_back(joined.substr(begin, static_cast<size_t>(end) - begin));
    begin = static_cast<size_t>(end);
  }
  if (texts.size() == ends.size() && begin == joined.size()) return texts;
  return Error{ErrorKind::kData, fmt::format("state '{}/{}' is not a list of texts", object_, key), where_, ""};
}

Result<TensorView> StateReader::get_tensor(std::string_view key) {
  const TensorView* tensor = find_tensor(*snapshot_, fmt::format("{}/{}", object_, key));
  if (tensor == nullptr) return missing(key);
  if (tensor->source != nullptr)
    return Error{ErrorKind::kData, fmt::format("state '{}' has no memory of its own", tensor->name), where_, ""};
  read_.insert(std::string(key));
  return *tensor;
}

Result<TensorView> StateReader::get_tensor(std::string_view key, DType dtype, std::span<const int64_t> shape) {
  const TensorView* tensor = find_tensor(*snapshot_, fmt::format("{}/{}", object_, key));
  if (tensor == nullptr) return missing(key);
  read_.insert(std::string(key));
  if (tensor->dtype == dtype && std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end()))
    return *tensor;
  return Error{ErrorKind::kData,
               fmt::format("state '{}' is {}{}, this run needs {}{}", tensor->name, dtype_name(tensor->dtype),
                           shape_text(tensor->shape), dtype_name(dtype), shape_text(shape)),
               where_, "the model or its settings changed since the checkpoint was saved"};
}

std::vector<std::string> StateReader::unread_keys() const {
  std::vector<std::string> keys;
  if (const auto values = snapshot_->scalars.find(object_); values != snapshot_->scalars.end()) {
    for (const auto& [key, value] : values->second) {
      if (!read_.contains(key)) keys.push_back(key);
    }
  }
  for (const TensorView& tensor : snapshot_->tensors) {
    const std::string_view name = tensor.name;
    if (name.size() > object_.size() && name.starts_with(object_) && name[object_.size()] == '/') {
      const std::string_view key = name.substr(object_.size() + 1);
      if (!read_.contains(key)) keys.emplace_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

Result<> StatefulRegistry::add(Stateful& object) {
  const std::string name = object.state_name();
  if (!is_good_name(name))
    return Error{ErrorKind::kInternal, fmt::format("state name {} has characters other than a-z 0-9 _ .", quote(name)),
                 "", ""};
  for (const Stateful* other : objects_) {
    if (other->state_name() == name)
      return Error{ErrorKind::kInternal, fmt::format("two objects save state as '{}'", name), "", ""};
  }
  objects_.push_back(&object);
  return {};
}

void StatefulRegistry::remove(const Stateful& object) { std::erase(objects_, &object); }

std::vector<std::string> StatefulRegistry::names() const {
  std::vector<std::string> names;
  for (const Stateful* object : objects_) names.push_back(object->state_name());
  return names;
}

Result<StateSnapshot> StatefulRegistry::save() const {
  StateSnapshot snapshot;
  for (const Stateful* object : objects_) {
    StateWriter writer(object->state_name(), &snapshot);
    TRY(object->save_state(writer));
    TRY(writer.status());
  }
  std::sort(snapshot.tensors.begin(), snapshot.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return snapshot;
}

Result<> StatefulRegistry::load(const StateSnapshot& snapshot, std::string_view where,
                                const std::set<std::string>& dropped) {
  const std::vector<std::string> registered = names();
  for (const Stateful* object : objects_) {
    if (!snapshot.scalars.contains(object->state_name()) && !object->may_be_missing())
      return Error{ErrorKind::kData, fmt::format("the checkpoint has no state of '{}'", object->state_name()),
                   std::string(where), "it was saved by a run without it: make the setup the same, or start over"};
  }
  for (const auto& [name, values] : snapshot.scalars) {
    if (std::find(registered.begin(), registered.end(), name) == registered.end() && !dropped.contains(name))
      return Error{ErrorKind::kData,
                   fmt::format("the checkpoint holds state of '{}', which this run does not have", name),
                   std::string(where), "make the setup the same as when it was saved, or start over"};
  }
  for (Stateful* object : objects_) {
    if (!snapshot.scalars.contains(object->state_name())) continue;
    StateReader reader(object->state_name(), &snapshot, std::string(where));
    TRY(object->load_state(reader));
    const std::vector<std::string> unread = reader.unread_keys();
    if (!unread.empty())
      return Error{
          ErrorKind::kData,
          fmt::format("state '{}/{}' was saved but is not read by this version", object->state_name(), unread.front()),
          std::string(where), "load it with the version that saved it"};
  }
  return {};
}

}  // namespace mortise
