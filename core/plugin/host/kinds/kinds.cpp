// Looks up kinds in the table, and lists their names.
#include "plugin/host/kinds/kinds.h"

#include <algorithm>

namespace mortise {

const KindInfo* find_kind_named(std::string_view name) {
  const auto* const found = std::ranges::find(kKinds, name, &KindInfo::name);
  return found == std::end(kKinds) ? nullptr : found;
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KindInfo& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::string kind_list() {
  std::string list;
  for (size_t place = 0; place < kNumKinds; ++place) {
    if (place > 0) list += place + 1 < kNumKinds ? ", " : " or ";
    list += kKinds[place].name;
  }
  return list;
}

}  // namespace mortise
