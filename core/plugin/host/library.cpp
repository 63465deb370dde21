// Loads the audited bytes, finds the exported symbol, and compares the table with the note.
#include "plugin/host/library.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/dll/library_info.hpp>
#include <boost/dll/shared_library.hpp>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "foundation/base/text.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/host_services.h"
#include "plugin/host/kinds/reward.h"
#include "plugin/host/running_code.h"
#include "plugin/host/table.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_file.h"

namespace mortise {
namespace {

Error refused(const PackInfo& info, std::string what, std::string next) {
  return {ErrorKind::kPlugin, std::move(what), info.path, std::move(next)};
}

// "pack acme.match 1.0.0 (1a2b3c4d5e6f)"
std::string label_of(const PackInfo& info) {
  return fmt::format("pack {} {} ({})", info.id, info.version, info.short_hash());
}

// Boost.DLL reads section headers, our audit the dynamic section: a file that shows them different exports is refused.
Result<> cross_check_exports(const PackFile& file, const PackInfo& info) {
  TRY(check_section_headers(file.bytes(), file.path()));
  const ElfSummary elf = TRY(read_elf(file.bytes(), file.path()));
  std::vector<std::string> names;
  try {
    boost::dll::library_info reader(file.descriptor_path());
    names = reader.symbols();
  } catch (const std::exception& e) {
    return refused(info, std::string("its symbol table cannot be read: ") + e.what(), "build the pack again");
  }
  const auto has = [](const std::vector<std::string>& sorted, const std::string& name) {
    return std::binary_search(sorted.begin(), sorted.end(), name);
  };
  // An undefined symbol may carry a size and then be listed too.
  std::erase_if(names, [&](const std::string& name) {
    return !has(elf.exports, name) && has(elf.undefined, name.substr(0, name.find('@')));
  });
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names != elf.exports) {
    return refused(info,
                   names.empty() ? "its section headers list no exported symbol"
                                 : "its section headers and its dynamic section list different exports",
                   "build the pack again and strip it with strip --strip-unneeded at most");
  }
  return {};
}

// Every library that was ever loaded, by hash. Never destroyed: code of packs may run until the process ends.
struct Loaded {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Library>> by_hash;
  std::deque<boost::dll::shared_library> handles;
};
Loaded& loaded() {
  static Loaded* const all = new Loaded;
  return *all;
}

Result<const mortise_pack*> open_library(PackFile& file, const PackInfo& info) {
  try {
    boost::dll::shared_library library;
    const std::string label = label_of(info);
    const RunningCode running(label, "static constructors", 0);
    library.load(file.descriptor_path(), boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    const mortise_pack* pack = &library.get<const mortise_pack>(pack_symbol(info.abi));
    loaded().handles.push_back(std::move(library));
    file.keep_open();
    return pack;
  } catch (const std::exception& e) {
    return refused(info, std::string("cannot be loaded: ") + e.what(), "build the pack again on this system");
  }
}

Result<> call_open(const mortise_pack& pack, const PackInfo& info) {
  register_row_text();  // a plugin may ask for it from its first call on, and keep the answer
  if (!MORTISE_HAS(&pack, open)) return {};
  int32_t code = 0;
  const std::string label = label_of(info);
  const RunningCode running(label, "open", 0);
  try {
    code = catchable(pack.open)(host_table(info.abi));
  } catch (const std::exception& e) {
    return refused(info, std::string("its open() threw: ") + e.what(), "tell the pack's author");
  } catch (...) {
    return refused(info, "its open() threw something that is not a std::exception", "tell the pack's author");
  }
  if (code != MORTISE_OK)
    return refused(info, "its open() refused to start: " + std::string(status_name(code)), "see the log lines above");
  return {};
}

}  // namespace

Result<const Library*> Library::load(const PackInfo& expected, std::string_view host_torch) {
  Loaded& all = loaded();
  const std::lock_guard lock(all.mutex);
  if (const auto it = all.by_hash.find(expected.sha256); it != all.by_hash.end()) return it->second.get();

  PackFile file = TRY(PackFile::open(expected.path));
  if (file.sha256() != expected.sha256) {
    return refused(expected, "the file has changed since it was checked", "start again when its build is done");
  }
  TRY(file.seal());
  return load_new(file, host_torch);
}

Result<const Library*> Library::load(PackFile& file, std::string_view host_torch) {
  Loaded& all = loaded();
  const std::lock_guard lock(all.mutex);
  if (const auto it = all.by_hash.find(file.sha256()); it != all.by_hash.end()) return it->second.get();
  return load_new(file, host_torch);
}

// With the lock.
Result<const Library*> Library::load_new(PackFile& file, std::string_view host_torch) {
  const PackInfo note = TRY(inspect_pack(file, host_torch));
  TRY(cross_check_exports(file, note));
  const mortise_pack* pack = TRY(open_library(file, note));
  const PackInfo table = TRY(read_table(*pack, note));
  TRY(compare_with_note(table, note));
  TRY(call_open(*pack, note));

  std::unique_ptr<Library> library(new Library);
  library->info_ = note;
  for (size_t i = 0; i < note.plugins.size(); ++i) library->descriptors_.push_back(table_descriptor(*pack, i));
  return (loaded().by_hash[note.sha256] = std::move(library)).get();
}

const void* Library::vtable(std::string_view kind, std::string_view name) const {
  const mortise_descriptor* const found = descriptor(kind, name);
  return found == nullptr ? nullptr : found->vtable;
}

const mortise_descriptor* Library::descriptor(std::string_view kind, std::string_view name) const {
  for (size_t i = 0; i < info_.plugins.size(); ++i) {
    if (info_.plugins[i].kind == kind && info_.plugins[i].name == name) return descriptors_[i];
  }
  return nullptr;
}

}  // namespace mortise
