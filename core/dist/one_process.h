// The communicator of a run of one process.
#pragma once

#include <memory>

#include "dist/communicator.h"

namespace mortise {

std::unique_ptr<Communicator> one_process_communicator();

}  // namespace mortise
