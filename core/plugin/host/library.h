// A pack in memory: verified, loaded once through Boost.DLL, opened, never unloaded.
//
// It loads exactly the bytes that were hashed and audited: a sealed copy of them, by its open descriptor. Cost: a
// second read of the file at first use. Threading: load on one thread at a time.
#pragma once

#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/pack/pack_file.h"
#include "plugin/pack/pack_info.h"

struct mortise_descriptor;

namespace mortise {

class Library {
 public:
  // `expected` comes from the scan; a file that has changed since is refused. Returns the one immortal Library of this
  // hash: loading the same bytes twice gives the same object.
  static Result<const Library*> load(const PackInfo& expected, std::string_view host_torch);
  // The same of a file that has been read and sealed. It gives its descriptor away.
  static Result<const Library*> load(PackFile& sealed, std::string_view host_torch);

  [[nodiscard]] const PackInfo& info() const { return info_; }
  // Null if there is none.
  [[nodiscard]] const void* vtable(std::string_view kind, std::string_view name) const;
  [[nodiscard]] const mortise_descriptor* descriptor(std::string_view kind, std::string_view name) const;

 private:
  static Result<const Library*> load_new(PackFile& sealed, std::string_view host_torch);
  Library() = default;
  PackInfo info_;
  std::vector<const mortise_descriptor*> descriptors_;  // by place in info_.plugins
};

}  // namespace mortise
