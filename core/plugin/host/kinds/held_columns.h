// Columns on the run's device for several calls of losses and estimators: one copy, which all of them read.
// Thread rule: one thread.
#pragma once

#include <initializer_list>
#include <memory>

#include "foundation/batch/step_view.h"
#include "plugin/host/devices.h"
#include "plugin/host/instance.h"

namespace mortise {

// Null: there is nothing that it would have to hold.
using HeldColumns = std::unique_ptr<HeldBytes>;

// An instance and the columns of a call.
struct ColumnReader {
  const PluginInstance* instance = nullptr;  // null: reads nothing
  const StepView* columns = nullptr;
};

// Holds the columns that readers on the device see and that are not held yet. Their memory neither changes nor moves while
// they are held. Chunks of a column are found too if they begin at a multiple of 64 tokens.
Result<HeldColumns> hold_columns(std::initializer_list<ColumnReader> readers);

}  // namespace mortise
