// Work that values do by themselves: comparing, printing, searching. Counted per rendering, so that lists that hold the
// same list many times over, or searches in large texts, end in an error in bounded time.
//
// Values do not know their interpreter, so the count is the thread's: a WorkBudget lives as long as a rendering.
// Thread rule: one rendering at a time per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "text/template/value.h"

namespace mortise::jinja {

inline thread_local int64_t work_left = std::numeric_limits<int64_t>::max();

class WorkBudget {
 public:
  explicit WorkBudget(int64_t units) : outer_(work_left) { work_left = units; }
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;
  ~WorkBudget() { work_left = outer_; }

 private:
  int64_t outer_;
};

inline bool work_is_spent() { return work_left <= 0; }
// False once the budget is used up: what is asked for then is not to be done.
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
// What a walk over the value itself costs: bytes of a text, items of a list.
inline size_t work_over(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return value.string().size() + 1;
    case Kind::kList:
      return value.list_value().items.size() + 1;
    case Kind::kTuple:
      return value.tuple_value().items.size() + 1;
    case Kind::kDict:
      return value.dict().size() + 1;
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
