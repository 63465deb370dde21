// Stateful: how an object saves and restores its state without knowing files, and how the checkpoint saves objects
// without knowing them.
//
// An object writes named scalars, texts and tensors under its own name. Nothing is lost silently. On load, every
// registered object must be present (unless it says may_be_missing), every object in the checkpoint must be registered
// (unless the caller drops it), and every key that an object wrote must be read. A missing key or a wrong type is an
// Error that names "object/key".
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/base/tensor_view.h"

namespace mortise {

// One value under "object/key". Tensors are kept apart, as views.
using StateScalar = std::variant<bool, int64_t, uint64_t, double, std::string>;

// All that a set of objects saved. Tensor views borrow from the objects (or from `owned`), so a snapshot must be
// written before they change. Move-only: the views of a copy would point into the original.
struct StateSnapshot {
  StateSnapshot() = default;
  StateSnapshot(StateSnapshot&&) = default;
  StateSnapshot& operator=(StateSnapshot&&) = default;

  std::map<std::string, std::map<std::string, StateScalar>>
      scalars;                      // object -> key -> value; every object has an entry
  std::vector<TensorView> tensors;  // named "object/key", sorted by name
  std::deque<std::string> owned;    // bytes given to put_bytes and the like (a deque never moves them)
};

// Given to Stateful::save_state. A key is used once; a second use is reported by StatefulRegistry::save.
class StateWriter {
 public:
  StateWriter(std::string object, StateSnapshot* snapshot);

  void put_bool(std::string_view key, bool value);
  void put_int(std::string_view key, int64_t value);
  void put_uint(std::string_view key, uint64_t value);
  void put_double(std::string_view key, double value);  // exact, NaN and infinities included
  void put_text(std::string_view key, std::string_view utf8);
  void put_bytes(std::string_view key, std::string bytes);                      // any bytes; kept as a U8 tensor
  void put_texts(std::string_view key, const std::vector<std::string>& texts);  // any bytes
  // Copied; a tensor with one axis.
  template <class T>
  void put_vector(std::string_view key, const std::vector<T>& values) {
    put_copy(key, dtype_of<T>(), std::as_bytes(std::span(values)));
  }
  // Borrowed until the snapshot has been written: contiguous CPU memory.
  void put_tensor(std::string_view key, DType dtype, std::span<const int64_t> shape, std::span<const std::byte> bytes);
  // A tensor whose bytes are read while the snapshot is written.
  void put_source(std::string_view key, DType dtype, std::span<const int64_t> shape,
                  std::shared_ptr<const TensorSource> source);

  [[nodiscard]] Result<> status() const;  // the first misuse, if any

 private:
  void put(std::string_view key, StateScalar value);
  void put_copy(std::string_view key, DType dtype, std::span<const std::byte> bytes);
  bool take(std::string_view key);

  std::string object_;
  StateSnapshot* snapshot_;
  std::set<std::string, std::less<>> keys_;
  std::string problem_;
};

// Given to Stateful::load_state; tensors and bytes borrow from the checkpoint and must be copied.
class StateReader {
 public:
  StateReader(std::string object, const StateSnapshot* snapshot, std::string where);

  [[nodiscard]] const std::string& where() const { return where_; }  // the checkpoint, for errors
  [[nodiscard]] bool has(std::string_view key) const;
  Result<bool> get_bool(std::string_view key);
  Result<int64_t> get_int(std::string_view key);
  Result<uint64_t> get_uint(std::string_view key);
  Result<double> get_double(std::string_view key);
  Result<std::string> get_text(std::string_view key);
  Result<std::string> get_bytes(std::string_view key);
  Result<std::vector<std::string>> get_texts(std::string_view key);
  template <class T>
  Result<std::vector<T>> get_vector(std::string_view key) {
    const std::span<const std::byte> bytes = TRY(get_copied(key, dtype_of<T>()));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  Result<TensorView> get_tensor(std::string_view key);
  // The same, but a tensor that lies in several files has a source instead of bytes (read_tensor_bytes takes both).
  // Refuses another dtype or shape than expected, naming both.
  Result<TensorView> get_tensor(std::string_view key, DType dtype, std::span<const int64_t> shape);

  // Keys written at save time that nothing has read, sorted.
  [[nodiscard]] std::vector<std::string> unread_keys() const;

 private:
  template <class T>
  Result<T> get(std::string_view key, std::string_view type);
  Result<std::span<const std::byte>> get_copied(std::string_view key, DType dtype);
  Error missing(std::string_view key) const;

  std::string object_;
  const StateSnapshot* snapshot_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
};

class Stateful {
 public:
  virtual ~Stateful() = default;
  [[nodiscard]] virtual std::string state_name() const = 0;  // stable, [a-z0-9_.]+, such as "actor.optim"
  // A checkpoint of before there were such objects loads without it.
  [[nodiscard]] virtual bool may_be_missing() const { return false; }
  virtual Result<> save_state(StateWriter& writer) const = 0;
  virtual Result<> load_state(StateReader& reader) = 0;
};

// The objects of a run. Holds pointers: an object must outlive its registry.
class StatefulRegistry {
 public:
  // Refuses a second object of one name and a name of other characters.
  Result<> add(Stateful& object);
  void remove(const Stateful& object);
  [[nodiscard]] std::vector<std::string> names() const;

  [[nodiscard]] Result<StateSnapshot> save() const;
  // `where` names the checkpoint in errors. Objects of the snapshot that `dropped` names are left out. After an error
  // some objects may already have the new state, so stop.
  Result<> load(const StateSnapshot& snapshot, std::string_view where, const std::set<std::string>& dropped = {});

 private:
  std::vector<Stateful*> objects_;
};

}  // namespace mortise
