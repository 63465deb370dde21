// Load cases: the pack in memory, before any instance.
#include <fmt/core.h>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "conformance/process_state.h"
#include "conformance/subject.h"
#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "mortise/mortise.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/devices.h"
#include "plugin/host/table.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/pack_file.h"

namespace mortise::check {
namespace {

constexpr double kQuickSeconds = 1.0;

// Without open(). A damaged file would end the process in the dynamic loader, and a file that the engine refuses could
// bring other libraries along, whose constructors nobody has agreed to run.
Result<const mortise_pack*> open_raw(const std::string& path, const std::string& host_torch) {
  const PackFile file = TRY(PackFile::open(path));
  const auto info = inspect_pack(file, host_torch);
  if (!info.ok()) return not_applicable("the engine refuses the file, so none of its code runs here; see load.opens");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return broken(std::string("cannot be loaded: ") + ::dlerror());
  const void* symbol = ::dlsym(library, pack_symbol(info->abi));
  if (symbol == nullptr) return broken(std::string("has no symbol ") + pack_symbol(info->abi));
  return static_cast<const mortise_pack*>(symbol);
}

Result<const mortise_pack*> open_raw(const Subject& subject) {
  return open_raw(subject.request().pack, subject.request().host_torch);
}

Result<> harmless(Subject& subject) {
  const ProcessState before = ProcessState::now();
  TRY(open_raw(subject));
  const std::string changed = difference(before, ProcessState::now());
  if (changed.empty()) return {};
  return broken("loading it, before any call, changes " + changed);
}

Result<> quick(Subject& subject) {
  const Stopwatch stopwatch;
  TRY(open_raw(subject));
  const double seconds = stopwatch.elapsed_s();
  if (seconds < kQuickSeconds) return {};
  return broken(fmt::format("loading it takes {}, without any call; do the work in create", format_duration(seconds)));
}

Result<> note_equals_table(Subject& subject) {
  if (subject.pack().id.empty()) return not_applicable("its note cannot be read; see static.note");
  const mortise_pack* pack = TRY(open_raw(subject));
  const PackInfo table = TRY(read_table(*pack, subject.pack()));
  return compare_with_note(table, subject.pack());
}

Result<> opens(Subject& subject) { return subject.load(); }

// `size`: of the struct in this ABI, which one of an older minor does not exceed.
Result<> demand_size(uint32_t given, size_t size, bool is_older, const std::string& what) {
  if (given == size || (is_older && given < size)) return {};
  return broken(fmt::format("struct_size of {} is {}, not {}; write sizeof", what, given, size));
}

template <class T>
Result<> demand_size(const T* ptr, bool is_older, const std::string& what) {
  if (ptr == nullptr) return broken(what + " is null");
  return demand_size(ptr->struct_size, sizeof(T), is_older, what);
}

Result<> sizes(Subject& subject) {
  const mortise_pack* pack = TRY(open_raw(subject));
  const int32_t abi = subject.pack().abi;
  const int32_t minor = meant_minor(abi, static_cast<int32_t>(pack->abi_minor));
  if (minor > newest_minor(abi)) return not_applicable("it is built for a later minor of the ABI");
  const bool is_older = abi == 0 || minor < newest_minor(abi);
  TRY(demand_size(pack, is_older, "the pack"));
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor* d = pack->plugins[i];
    TRY(demand_size(d, is_older, "descriptor " + std::to_string(i)));
    const std::string who = quote(d->name == nullptr ? "" : d->name);
    for (uint32_t k = 0; k < d->num_params; ++k)
      TRY(demand_size(d->params[k], is_older, fmt::format("parameter {} of {}", k, who)));
    const KindInfo* const kind = d->kind == nullptr ? nullptr : find_kind(current_kind(d->kind));
    if (kind == nullptr) continue;
    if (d->vtable == nullptr) return broken(fmt::format("the vtable of {} is null", who));
    const uint32_t given = static_cast<const VtableHead*>(d->vtable)->struct_size;
    TRY(demand_size(given, kind->vtable_size, is_older, "the vtable of " + who));
  }
  return {};
}

// The same bytes again under another name: static data and names must not clash.
Result<> beside_itself(Subject& subject) {
  TRY(subject.load());
  const PackFile file = TRY(PackFile::open(subject.request().pack));
  const int copy = ::memfd_create("copy of a pack", MFD_CLOEXEC);
  const auto bytes = file.bytes();
  if (copy < 0 || ::write(copy, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return not_applicable("no memory for a copy of the pack");
  const mortise_pack* second = TRY(open_raw("/proc/self/fd/" + std::to_string(copy), subject.request().host_torch));
  const auto table = read_abi_struct(second);
  if (table.open == nullptr) return {};
  const int32_t code = catchable(table.open)(make_host());
  if (code == MORTISE_OK) return {};
  return broken("a second copy of it in the same process does not open: " + status_name(code));
}

// A host loads the pack early for the flag, so that the flag and the table go together.
Result<> reads(Subject& subject) {
  const mortise_pack* pack = TRY(open_raw(subject));
  bool told = false;
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor d = read_abi_struct(pack->plugins[i]);
    const std::string who = "plugin " + quote(d.name == nullptr ? "" : d.name);
    const bool announced = (d.flags & MORTISE_FLAG_TELLS_READS) != 0;
    const auto get = d.get_extension == nullptr ? nullptr : catchable(d.get_extension);
    const auto* table = get == nullptr ? nullptr : static_cast<const mortise_reads*>(get(MORTISE_EXT_READS));
    if (get != nullptr && get("mortise.not_there/7") != nullptr)
      return broken(who + " gives a table for the extension mortise.not_there/7, which nobody knows");
    if (announced && table == nullptr)
      return broken(fmt::format("the flags of {} announce mortise.reads/1, and it has no table for it", who));
    if (!announced && table != nullptr)
      return broken(who + " has mortise.reads/1 and not the flag MORTISE_FLAG_TELLS_READS, so no host asks for it");
    if (table != nullptr && read_abi_struct(table).tell == nullptr)
      return broken(fmt::format("mortise.reads/1 of {} lacks its slot tell", who));
    told = told || announced;
  }
  if (told) return {};
  return not_applicable("none of its plugins tells what it reads");
}

Result<> devices(Subject& subject) {
  const mortise_pack* pack = TRY(open_raw(subject));
  bool told = false;
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor d = read_abi_struct(pack->plugins[i]);
    const auto types = device_types(d);
    if (!types.ok())
      return broken(fmt::format("plugin {}: {}", quote(d.name == nullptr ? "" : d.name), types.error().what));
    told = told || types->size() > 1;
  }
  if (told) return {};
  return not_applicable("none of its plugins takes tensors of another device than the CPU");
}

Result<> missing(std::string_view slot) { return broken("its vtable lacks the mandatory slot " + quote(slot)); }

// A slot of the vtable, or null if the vtable is too short.
const void* slot_at(const void* vtable, size_t offset) {
  const void* slot = nullptr;
  if (static_cast<const VtableHead*>(vtable)->struct_size < offset + sizeof slot) return nullptr;
  std::memcpy(static_cast<void*>(&slot), static_cast<const char*>(vtable) + offset, sizeof slot);
  return slot;
}

// What a kind's vtable must have in addition to its slots.
Result<> kind_rules(const Subject& subject) {
  if (subject.kind() == kReward) {
    const auto vtable = read_abi_struct(&subject.vtable<mortise_reward_vtable>());
    if (vtable.granularity < MORTISE_REWARD_ROW || vtable.granularity > MORTISE_REWARD_BATCH)
      return broken(fmt::format("its granularity {} is none of row, group, batch", vtable.granularity));
  }
  if (subject.kind() == kRollout) {
    const auto vtable = read_abi_struct(&subject.vtable<mortise_rollout_backend_vtable>());
    const int trio =
        (vtable.begin_update != nullptr) + (vtable.update_weight != nullptr) + (vtable.end_update != nullptr);
    if (trio != 0 && trio != 3)
      return broken("it has only part of begin_update, update_weight, end_update; offer all three or none");
  }
  return {};
}

Result<> slots(Subject& subject) {
  const auto head = read_abi_struct(static_cast<const VtableHead*>(subject.raw_vtable()));
  if (head.create == nullptr) return missing("create");
  if (head.destroy == nullptr) return missing("destroy");
  const KindInfo* const kind = find_kind(subject.info().kind);
  if (kind == nullptr) return not_applicable("its kind is unknown; see static.known_names");
  for (const KindSlot& slot : kind->slots) {
    if (slot_at(subject.raw_vtable(), slot.offset) == nullptr) return missing(slot.name);
  }
  return kind_rules(subject);
}

constexpr Case kLoadCases[] = {
    {"load.opens", "R14", kPack, "the engine's loader accepts it, and its open() returns 0", opens, false},
    {"load.harmless", "R21", kPack, "loading changes nothing in the process", harmless, false},
    {"load.quick", "R21", kPack, "loading takes almost no time", quick, false},
    {"load.note_equals_table", "R13", kPack, "note and table say the same", note_equals_table, false},
    {"load.sizes", "R1", kPack, "every struct_size is the size of its struct, of an older minor at most", sizes, false},
    {"load.reads", "R45", kPack, "a plugin that announces mortise.reads/1 has it", reads, false},
    {"load.devices", "R46", kPack, "a plugin that lists devices lists each once, and the CPU", devices, false},
    {"load.beside_itself", "R21", kPack, "a second copy works in the same process", beside_itself, false},
    {"load.slots", "R29", kEvery, "it has the mandatory slots", slots},
};

}  // namespace

std::span<const Case> load_cases() { return kLoadCases; }

}  // namespace mortise::check
