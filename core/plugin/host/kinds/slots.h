// The slots that the vtable of an instance has, and the check of its mandatory slots, for all kinds.
#pragma once

#include <initializer_list>
#include <string>

#include "foundation/base/text.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/instance.h"

namespace mortise {

template <class Vtable>
[[nodiscard]] Vtable vtable_of(const PluginInstance& instance) {
  return read_abi_struct(static_cast<const Vtable*>(instance.vtable()));
}

struct MandatorySlot {
  const char* name;
  bool is_there;
};

[[nodiscard]] inline Result<> check_slots(const PluginInstance& instance, std::initializer_list<MandatorySlot> slots) {
  for (const MandatorySlot& slot : slots) {
    if (!slot.is_there)
      return instance.error("create", 0, "its vtable lacks the mandatory slot " + quote(slot.name),
                            "give the slot a function and build the pack again");
  }
  return {};
}

}  // namespace mortise
