// The checks on exports, needed libraries, dynamic tags and segments of a pack.
#include "plugin/pack/audit.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "foundation/base/text.h"
#include "mortise/abi.h"
#include "plugin/pack/note.h"
#include "plugin/pack/tier.h"

namespace mortise {
namespace {

// The C and C++ runtimes: the program has them in memory already, so a pack gets the same copies.
constexpr std::array<std::string_view, 11> kRuntimes = {
    "libc.so.6",      "libm.so.6",   "libdl.so.2",     "libpthread.so.0",      "librt.so.1",           "libgcc_s.so.1",
    "libstdc++.so.6", "libc++.so.1", "libc++abi.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};

struct Forbidden {
  std::string_view prefix;
  std::string_view reason;
  std::string_view next;
};
// Never allowed, whatever the note says.
constexpr std::array<Forbidden, 4> kForbidden = {{
    {"libgomp", "a second OpenMP runtime would fight over the host's threads",
     "use host->parallel_for instead of OpenMP"},
    {"libomp", "a second OpenMP runtime would fight over the host's threads",
     "use host->parallel_for instead of OpenMP"},
    {"libiomp", "a second OpenMP runtime would fight over the host's threads",
     "use host->parallel_for instead of OpenMP"},
    {"libpython", "a Python interpreter may not enter the training process", "run Python behind a service"},
}};

bool is_runtime(std::string_view name) {
  if (std::find(kRuntimes.begin(), kRuntimes.end(), name) != kRuntimes.end()) return true;
#if defined(MORTISE_ASAN) || defined(MORTISE_TSAN)
  // A build under a sanitizer builds its packs so too; the runtime is the program's own.
  return name.starts_with("libasan.so") || name.starts_with("libubsan.so") || name.starts_with("libtsan.so");
#else
  return false;
#endif
}

bool exports(const ElfSummary& elf, std::string_view symbol) {
  return std::binary_search(elf.exports.begin(), elf.exports.end(), symbol);
}

bool is_torch(std::string_view name) { return name.starts_with("libtorch") || name.starts_with("libc10"); }

Result<> audit_needed(const ElfSummary& elf, const PackInfo& pack) {
  for (const std::string& name : elf.needed) {
    for (const Forbidden& forbidden : kForbidden) {
      if (name.starts_with(forbidden.prefix)) {
        return Error{ErrorKind::kPlugin, fmt::format("needs {}: {}", quote(name), forbidden.reason), pack.path,
                     std::string(forbidden.next)};
      }
    }
    if (is_runtime(name)) continue;
    if (is_torch(name) && pack.tier == kTorchLocked) continue;
    if (std::find(pack.allowed_needs.begin(), pack.allowed_needs.end(), name) != pack.allowed_needs.end()) continue;
    if (is_torch(name)) {
      return Error{ErrorKind::kPlugin, fmt::format("needs {} but is not of the torch-locked tier", quote(name)),
                   pack.path, "build it with mortise_add_pack(... TORCH), or without libtorch"};
    }
    return Error{ErrorKind::kPlugin, fmt::format("needs {}, which its note does not list", quote(name)), pack.path,
                 "link the library statically, or list it as NEEDS in mortise_add_pack()"};
  }
  return {};
}

}  // namespace

std::string_view major_of_symbol(std::string_view symbol) {
  constexpr std::string_view kStem = "mortise_pack_v";
  static_assert(std::string_view(kPackSymbol).starts_with(kStem));
  if (!symbol.starts_with(kStem)) return {};
  const std::string_view major = symbol.substr(kStem.size());
  return major.find_first_not_of("0123456789") == std::string_view::npos ? major : std::string_view();
}

Result<> audit_major(const ElfSummary& elf, std::string_view where) {
  if (exports(elf, kPackSymbol) || exports(elf, kPackSymbolV0)) return {};
  for (const std::string& name : elf.exports) {
    if (const std::string_view major = major_of_symbol(name); !major.empty()) return other_abi(major, where);
  }
  return {};
}

Result<> audit_elf(const ElfSummary& elf, std::string_view where) {
  const auto refuse = [&](std::string what, std::string next) {
    return Error{ErrorKind::kPlugin, std::move(what), std::string(where), std::move(next)};
  };
  if (elf.is_program) return refuse("a program, not a shared object", "link the pack with -shared");
  const bool has_new = exports(elf, kPackSymbol), has_old = exports(elf, kPackSymbolV0);
  if (!has_new && !has_old) {
    return refuse("does not export " + quote(kPackSymbol),
                  "declare the pack with MORTISE_PACK and build it with mortise_add_pack()");
  }
  std::vector<std::string> others;
  size_t more = 0;
  for (const std::string& name : elf.exports) {
    if (!major_of_symbol(name).empty()) continue;
    if (others.size() < 3)
      others.push_back(quote(name));
    else
      ++more;
  }
  if (!others.empty()) {
    return refuse(fmt::format("exports more than {}: {}{}", quote(has_new ? kPackSymbol : kPackSymbolV0),
                              join(others, ", "), (more > 0 ? fmt::format(" and {} more", more) : "")),
                  "link it with the SDK's version script (mortise_add_pack() does)");
  }
  if (!elf.unexpected.empty()) {
    return refuse(fmt::format("its dynamic section has {}, which packs may not have", elf.unexpected.front()),
                  "link it without --auxiliary, --filter, --audit, --depaudit and unusual -z options");
  }
  if (!elf.runpaths.empty()) {
    return refuse("has a run path " + quote(elf.runpaths.front()),
                  "link it without -rpath; link other libraries statically");
  }
  if (elf.executable_stack) {
    return refuse("asks for an executable stack", "link it with -z noexecstack (assembly files need .note.GNU-stack)");
  }
  if (elf.text_relocations) return refuse("has text relocations", "compile it with -fPIC");
  if (!elf.nodelete) return refuse("could be unloaded", "link it with -z nodelete (mortise_add_pack() does)");
  return {};
}

Result<> audit_pack(const ElfSummary& elf, const PackInfo& pack, std::string_view host_torch) {
  // A file with both names is read as one of the newer ABI, and so its note has to describe that table.
  const bool has_new = exports(elf, kPackSymbol);
  if (pack.abi == 0 ? has_new : !has_new && exports(elf, kPackSymbolV0)) {
    return Error{ErrorKind::kPlugin,
                 fmt::format("its metadata note is of plugin ABI {}, but it exports {}", pack.abi,
                             quote(has_new ? kPackSymbol : kPackSymbolV0)),
                 pack.path, "build the pack again with mortise_add_pack()"};
  }
  if (pack.abi == 0 && pack.min_host_minor > newest_minor(0)) {
    return Error{ErrorKind::kPlugin,
                 fmt::format("needs a host of plugin ABI 0.{}, and ABI 0 has ended with 0.{}", pack.min_host_minor,
                             newest_minor(0)),
                 pack.path, "build the pack again with this version's SDK"};
  }
  if (pack.min_host_minor > newest_minor(pack.abi)) {
    return Error{ErrorKind::kPlugin,
                 fmt::format("needs a host of plugin ABI {}.{}, this one has {}.{}", pack.abi, pack.min_host_minor,
                             pack.abi, newest_minor(pack.abi)),
                 pack.path,
                 fmt::format("update mortise, or build the pack with MORTISE_TARGET_MINOR={}", newest_minor(pack.abi))};
  }
  if (pack.tier == kTorchLocked && pack.torch != host_torch) {
    const std::string host = host_torch.empty() ? "has no libtorch" : "has libtorch " + std::string(host_torch);
    return Error{ErrorKind::kPlugin, fmt::format("built for libtorch {}, this program {}", pack.torch, host), pack.path,
                 host_torch.empty()
                     ? "use a program with libtorch " + pack.torch
                     : "build the pack again with MORTISE_TORCH_DIR naming libtorch " + std::string(host_torch)};
  }
  return audit_needed(elf, pack);
}

}  // namespace mortise
