// A team member's share of a pass: what the files of DecodeForward have in common. Private to this folder.
#pragma once

#include <cstdint>
#include <span>

#include "generate/decode/forward.h"

namespace mortise {

inline constexpr int64_t kPanel = kPanelColumns;

inline PassRange share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Rows [first, last) belong to `parts` members that share them by panels; this is number `part`.
struct DecodeForward::Member {
  const PackedWeights* weights;
  std::span<const PassRow> rows;
  KvShape kv;
  int64_t first, last;
  int64_t part, parts;
  Team* team;  // null: no other member has a part of these rows
  FloatBuffer* scratch;
  ExpertSort* sort;
  int64_t score_stride;
  const SampledForward* store;  // null: none

  void join() const {
    if (team != nullptr) team->join();
  }
  [[nodiscard]] PassRange my_rows() const {
    const PassRange r = share(last - first, part, parts);
    return {first + r.begin, first + r.end};
  }
};

}  // namespace mortise
