// The outstanding samples of a rollout backend. It checks every delivered sequence.
//
// Threading: used by one call at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plugin/host/kinds/rollout_backend.h"

namespace mortise {

class RolloutLedger {
 public:
  // False: a request of this id is still outstanding.
  bool add(const RolloutRequest& request);
  // "" if the sequence is outstanding and well formed; it then counts as delivered. Else the fault.
  std::string take(const RolloutSequence& sequence, bool has_null_ids);
  [[nodiscard]] uint64_t num_owed() const { return num_owed_; }
  // "sample 1 of request 3"; only with num_owed() > 0.
  [[nodiscard]] std::string first_owed() const;

 private:
  struct Entry {
    int64_t max_new_tokens = 0;
    int64_t num_left = 0;
    std::vector<bool> delivered;
  };
  std::map<int64_t, Entry> open_;
  uint64_t num_owed_ = 0;
};

}  // namespace mortise
