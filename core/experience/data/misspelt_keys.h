// Keys of data rows that are nearly those that something reads, in rows that lack these: "asnwer" for "answer". A key
// that nobody knows is a column like any other, so this can only be told, never refused. Each is told of once a file,
// with its first line. Cost: a look-up per key of a row. Threading: one thread; an object of each thread's own can be
// merged into another.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/formats/json.h"

namespace mortise {

// For a row without one of the keys `known`: "the row has 'promt': did you mean 'prompt'?", or empty.
std::string misspelt_key(const Json& row, std::span<const std::string> known);

class MisspeltKeys {
 public:
  // `read`: the keys that something reads where a row has them; must outlive the object.
  explicit MisspeltKeys(std::span<const std::string> read) : read_(read) {}

  // Looks at a row of the file with this index; rows in any order.
  void see(const Json& row, int32_t file, int64_t line);
  void merge(const MisspeltKeys& other);
  // A line for each key of each file, in their order.
  [[nodiscard]] std::vector<std::string> warnings(std::span<const std::string> files) const;

 private:
  struct Place {
    const std::string* meant = nullptr;
    int64_t first_line = 0, num_rows = 0;
  };
  void add(const std::pair<int32_t, std::string>& file_and_key, const Place& place);
  // The key of `read_` that is meant by one that is not among them; null: none.
  const std::string* meant_by(const std::string& key);

  std::span<const std::string> read_;
  std::set<std::string, std::less<>> there_;                      // those of them that some row has
  std::map<std::string, const std::string*, std::less<>> known_;  // what meant_by() has found out
  std::map<std::pair<int32_t, std::string>, Place> found_;
};

}  // namespace mortise
