// Finds keys of data rows that are almost keys that something reads, in rows that lack those: "asnwer" for "answer". An
// unknown key is a column like any other, so this only warns. It warns once per key and file, with the first line.
// Cost: a look-up per key of a row. Threading: one thread; each thread may have its own object, which another can
// merge.
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
  // The key of `read_` that an unknown one resembles; null: none.
  const std::string* meant_by(const std::string& key);

  std::span<const std::string> read_;
  std::set<std::string, std::less<>> there_;                      // those of them that some row has
  std::map<std::string, const std::string*, std::less<>> known_;  // what meant_by() has found out
  std::map<std::pair<int32_t, std::string>, Place> found_;
};

}  // namespace mortise
