// The command `serve` (cmd_serve.cpp).
#pragma once

#include "commands.h"

namespace mortise {

int cmd_serve(Arguments args);

}  // namespace mortise
