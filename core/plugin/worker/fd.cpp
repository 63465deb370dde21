// Closes the descriptor.
#include "plugin/worker/fd.h"

#include <unistd.h>

namespace mortise {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

}  // namespace mortise
