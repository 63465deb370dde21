// Load cases: the pack in memory, before any instance.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "mortise/mortise.h"
#include "plugin/check/process_state.h"
#include "plugin/check/subject.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/table.h"
#include "plugin/pack/audit.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_file.h"

namespace mortise::check {
namespace {

constexpr double kQuickSeconds = 1.0;

// Without the loader's audit and without open(). A damaged file would end the process in the dynamic loader.
Result<const mortise_pack*> open_raw(const std::string& path) {
  const PackFile file = TRY(PackFile::open(path));
  if (!read_elf(file.bytes(), path).ok()) return not_applicable("the file cannot be read; see static.readable");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return broken(std::string("cannot be loaded: ") + ::dlerror());
  const void* symbol = ::dlsym(library, kPackSymbol);
  if (symbol == nullptr) return broken("has no symbol mortise_pack_v0");
  return static_cast<const mortise_pack*>(symbol);
}

Result<> harmless(Subject& subject) {
  const ProcessState before = ProcessState::now();
  TRY(open_raw(subject.request().pack));
  const std::string changed = difference(before, ProcessState::now());
  if (changed.empty()) return {};
  return broken("loading it, before any call, changes " + changed);
}

Result<> quick(Subject& subject) {
  const Stopwatch stopwatch;
  TRY(open_raw(subject.request().pack));
  const double seconds = stopwatch.elapsed_s();
  if (seconds < kQuickSeconds) return {};
  return broken("loading it takes " + format_duration(seconds) + ", without any call; do the work in create");
}

Result<> note_equals_table(Subject& subject) {
  if (subject.pack().id.empty()) return not_applicable("its note cannot be read; see static.note");
  const mortise_pack* pack = TRY(open_raw(subject.request().pack));
  const PackInfo table = TRY(read_table(*pack, subject.pack()));
  return compare_with_note(table, subject.pack());
}

Result<> opens(Subject& subject) { return subject.load(); }

template <class T>
Result<> demand_size(const T* ptr, const std::string& what) {
  if (ptr == nullptr) return broken(what + " is null");
  if (ptr->struct_size == sizeof(T)) return {};
  return broken("struct_size of " + what + " is " + std::to_string(ptr->struct_size) + ", not " +
                std::to_string(sizeof(T)) + "; write sizeof");
}

Result<> vtable_size(const mortise_descriptor& d, const std::string& what) {
  switch (kind_bit(d.kind)) {
    case kPolicyLoss:
      return demand_size(static_cast<const mortise_policy_loss_vtable*>(d.vtable), what);
    case kKlEstimator:
      return demand_size(static_cast<const mortise_kl_estimator_vtable*>(d.vtable), what);
    case kAdvantage:
      return demand_size(static_cast<const mortise_advantage_estimator_vtable*>(d.vtable), what);
    case kReward:
      return demand_size(static_cast<const mortise_reward_vtable*>(d.vtable), what);
    case kRollout:
      return demand_size(static_cast<const mortise_rollout_backend_vtable*>(d.vtable), what);
    default:
      return {};
  }
}

Result<> sizes(Subject& subject) {
  const mortise_pack* pack = TRY(open_raw(subject.request().pack));
  if (pack->abi_minor != MORTISE_ABI_MINOR) return not_applicable("it is built for another minor of the ABI");
  TRY(demand_size(pack, "the pack"));
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor* d = pack->plugins[i];
    TRY(demand_size(d, "descriptor " + std::to_string(i)));
    const std::string who = quote(d->name == nullptr ? "" : d->name);
    for (uint32_t k = 0; k < d->num_params; ++k)
      TRY(demand_size(d->params[k], "parameter " + std::to_string(k) + " of " + who));
    if (d->kind != nullptr) TRY(vtable_size(*d, "the vtable of " + who));
  }
  return {};
}

// The same bytes once more under another name: static data and names must not meet.
Result<> beside_itself(Subject& subject) {
  TRY(subject.load());
  const PackFile file = TRY(PackFile::open(subject.request().pack));
  const int copy = ::memfd_create("copy of a pack", MFD_CLOEXEC);
  const auto bytes = file.bytes();
  if (copy < 0 || ::write(copy, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return not_applicable("no memory for a copy of the pack");
  const mortise_pack* second = TRY(open_raw("/proc/self/fd/" + std::to_string(copy)));
  const auto table = read_abi_struct(second);
  if (table.open == nullptr) return {};
  const int32_t code = catchable(table.open)(make_host());
  if (code == MORTISE_OK) return {};
  return broken("a second copy of it in the same process does not open: " + status_name(code));
}

Result<> missing(std::string_view slot) { return broken("its vtable lacks the mandatory slot " + quote(slot)); }

Result<> slots(Subject& subject) {
  const auto head = read_abi_struct(static_cast<const VtableHead*>(subject.raw_vtable()));
  if (head.create == nullptr) return missing("create");
  if (head.destroy == nullptr) return missing("destroy");
  switch (subject.kind()) {
    case kPolicyLoss:
      if (read_abi_struct(&subject.vtable<mortise_policy_loss_vtable>()).compute == nullptr) return missing("compute");
      return {};
    case kKlEstimator:
      if (read_abi_struct(&subject.vtable<mortise_kl_estimator_vtable>()).compute == nullptr) return missing("compute");
      return {};
    case kAdvantage:
      if (read_abi_struct(&subject.vtable<mortise_advantage_estimator_vtable>()).compute == nullptr)
        return missing("compute");
      return {};
    case kReward: {
      const auto vtable = read_abi_struct(&subject.vtable<mortise_reward_vtable>());
      if (vtable.score == nullptr) return missing("score");
      if (vtable.granularity < MORTISE_REWARD_ROW || vtable.granularity > MORTISE_REWARD_BATCH)
        return broken("its granularity " + std::to_string(vtable.granularity) + " is none of row, group, batch");
      return {};
    }
    default: {
      const auto vtable = read_abi_struct(&subject.vtable<mortise_rollout_backend_vtable>());
      if (vtable.set_version == nullptr) return missing("set_version");
      if (vtable.submit == nullptr) return missing("submit");
      if (vtable.poll == nullptr) return missing("poll");
      const int trio =
          (vtable.begin_update != nullptr) + (vtable.update_weight != nullptr) + (vtable.end_update != nullptr);
      if (trio == 0 || trio == 3) return {};
      return broken("it has only part of begin_update, update_weight, end_update; offer all three or none");
    }
  }
}

constexpr Case kCases[] = {
    {"load.opens", "R14", kPack, "the engine's loader takes it, and its open() returns 0", opens, false},
    {"load.harmless", "R21", kPack, "loading changes nothing in the process", harmless, false},
    {"load.quick", "R21", kPack, "loading takes no time", quick, false},
    {"load.note_equals_table", "R13", kPack, "note and table say the same", note_equals_table, false},
    {"load.sizes", "R1", kPack, "every struct_size is the size of its struct", sizes, false},
    {"load.beside_itself", "R21", kPack, "a second copy lives in the same process", beside_itself, false},
    {"load.slots", "R29", kEvery, "the mandatory slots are there", slots},
};

}  // namespace

std::span<const Case> load_cases() { return kCases; }

}  // namespace mortise::check
