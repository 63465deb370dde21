// The dtype of a save that keeps what was read.
#pragma once

#include <string_view>

namespace mortise {

// File by file and tensor by tensor as the folder has them that was read (SaveOptions::dtype, trainer.save_dtype).
inline constexpr std::string_view kStoredDtype = "stored";

}  // namespace mortise
