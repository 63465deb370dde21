// The budget of a rendering: how much work values do (comparing, printing, searching, copying), and how much memory
// they use. A template that exceeds it ends with an error, in bounded time and memory.
//
// A unit of work is about 10 ns: looking at one byte or item. The caller of a filter, test or method pays for its input
// and its arguments (Interpreter::filter, Interpreter::test, Method::call), so only code that costs more spends work
// itself. Values do not know their interpreter, so the counts belong to the thread. A WorkBudget lives as long as a
// rendering. Thread rule: one rendering at a time per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "text/template/value.h"

namespace mortise::jinja {

inline thread_local int64_t work_left = std::numeric_limits<int64_t>::max();
inline thread_local int64_t live_limit = std::numeric_limits<int64_t>::max() / 2;  // limit of live_bytes and held_bytes
inline thread_local int64_t held_bytes = 0;  // other memory of a rendering: unfinished texts, scopes
inline thread_local size_t max_text_bytes = std::numeric_limits<size_t>::max();  // size of one text

class WorkBudget {
 public:
  WorkBudget(int64_t units, size_t most_live_bytes, size_t most_text_bytes)
      : outer_work_(work_left), outer_limit_(live_limit), outer_held_(held_bytes), outer_text_(max_text_bytes) {
    work_left = units;
    held_bytes = 0;
    live_limit = live_bytes + static_cast<int64_t>(most_live_bytes);
    max_text_bytes = most_text_bytes;
  }
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;
  ~WorkBudget() {
    work_left = outer_work_;
    live_limit = outer_limit_;
    held_bytes = outer_held_;
    max_text_bytes = outer_text_;
  }

 private:
  int64_t outer_work_;
  int64_t outer_limit_;
  int64_t outer_held_;
  size_t outer_text_;
};

// Names of a namespace that one unit of work compares: each is a text somewhere else in memory.
inline constexpr size_t kAttributesPerUnit = 2;

inline bool work_is_spent() { return work_left <= 0; }
// False once the budget is used up. The caller must then not do the work.
inline bool spend_work(size_t units) {
  if (work_left <= 0) return false;
  const auto most = static_cast<size_t>(work_left);
  work_left -= static_cast<int64_t>(units < most ? units : most);
  return work_left > 0;
}
inline Result<> use_work(size_t units) {
  if (!spend_work(units)) return type_error("the template does too much work");
  return {};
}
// Whether so many bytes more may be held.
inline Result<> room_for(size_t bytes) {
  const int64_t held = live_bytes + held_bytes;
  if (held > live_limit || bytes > static_cast<size_t>(live_limit - held))
    return type_error("the template makes too much data");
  return {};
}
// Whether one text may be so long.
inline Result<> text_may_have(size_t bytes) {
  if (bytes > max_text_bytes) return type_error("the template makes too much data");
  return room_for(bytes);
}
// The cost of walking over the value itself: bytes of a text, items of a list.
inline size_t work_over(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return value.string().size() + 1;
    case Kind::kList:
      return value.list_value().items.size() + 1;
    case Kind::kTuple:
      return value.tuple_value().items.size() + 1;
    case Kind::kDict:
      return 2 * value.dict().size() + 1;
    case Kind::kView:
      return value.view().items.size() + 1;
    case Kind::kIterator:
      return value.iterator_value().items.size() + 1;
    case Kind::kRange:
      return static_cast<size_t>(value.range().length) + 1;
    default:
      return 1;
  }
}

}  // namespace mortise::jinja
