// See held_columns.h.
#include "plugin/host/kinds/held_columns.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "plugin/host/kinds/step_call.h"

namespace mortise {

Result<HeldColumns> hold_columns(std::initializer_list<ColumnReader> readers) {
  PluginDevice* device = nullptr;  // all instances have the one of the run
  std::vector<std::span<const std::byte>> parts;
  for (const auto& [instance, columns] : readers) {
    if (instance == nullptr || instance->device() == nullptr) continue;
    device = instance->device();
    for (const InputColumn& column : find_step_kind(instance->info().kind)->columns) {
      const std::span<const std::byte> bytes = column.is_mask ? std::as_bytes(columns->get<uint8_t>(column.name))
                                                              : std::as_bytes(columns->get<float>(column.name));
      const bool is_there = std::ranges::find(parts, bytes.data(), &std::span<const std::byte>::data) != parts.end();
      if (!bytes.empty() && !is_there && device->find_held(bytes) == nullptr) parts.push_back(bytes);
    }
  }
  if (parts.empty()) return HeldColumns();
  return HeldBytes::send(*device, parts);
}

}  // namespace mortise
