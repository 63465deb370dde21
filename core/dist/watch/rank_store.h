// The store of a group: a few small texts that all ranks read and write, served by one process or kept in a file.
//
// Thread rule: one call at a time per object. A call may block for as long as the process that serves the store is
// stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "foundation/base/result.h"

namespace mortise {

class RankStore {
 public:
  virtual ~RankStore() = default;
  virtual Result<> set(const std::string& key, const std::string& value) = 0;
  virtual Result<bool> has(const std::string& key) = 0;
  // The keys must be there.
  virtual Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys) = 0;
  virtual Result<int64_t> add(const std::string& key, int64_t amount) = 0;  // returns the new sum
  // Sets the key to `desired` if it is `expected`. Returns the value after that.
  virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) = 0;
};

}  // namespace mortise
