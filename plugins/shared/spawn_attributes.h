// How the packs start a program: in a process group of its own, with no signal blocked or handled. C++17.
#pragma once

#include <spawn.h>

#include <csignal>

namespace mortise {

class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&value_);
    sigset_t all, nothing;
    sigfillset(&all);
    sigemptyset(&nothing);
    posix_spawnattr_setsigdefault(&value_, &all);
    posix_spawnattr_setsigmask(&value_, &nothing);
    posix_spawnattr_setpgroup(&value_, 0);
    posix_spawnattr_setflags(&value_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  ~SpawnAttributes() { posix_spawnattr_destroy(&value_); }
  [[nodiscard]] const posix_spawnattr_t* get() const { return &value_; }

 private:
  posix_spawnattr_t value_{};
};

}  // namespace mortise
