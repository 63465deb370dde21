// Ends a program before libtorch's destructors. They take 0.1 s, a third of a short command, and free what the kernel frees
// anyway. The C library runs the handlers of exit() from the last that was registered to the first. The handler of this
// file is registered when the linked libraries have been started, and before the program's own objects are made. At the
// end, the program's objects are therefore destroyed first. Then this handler runs the destructors of packs and ends the
// process. The destructors of all linked libraries are left out. If LD_PRELOAD adds a profiler that writes its file in a
// destructor, it writes none.
//
// It is no part of the room: programs link the object library mortise_libtorch_end. Nothing calls it, and the linker drops
// such a file from a static library.
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

namespace {

size_t g_num_linked = 0;  // shared objects that were loaded before the program began

struct Loaded {
  std::string_view name;  // the name of the file, without its folder
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
};

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// All shared objects, in the order in which they were loaded.
std::vector<Loaded> loaded_objects() {
  std::vector<Loaded> objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* out) {
        Loaded object{file_name(info->dlpi_name), info->dlpi_addr, nullptr};
        for (ElfW(Half) i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type == PT_DYNAMIC)
            object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + header.p_vaddr);
        }
        static_cast<std::vector<Loaded>*>(out)->push_back(object);
        return 0;
      },
      &objects);
  return objects;
}

// Adds the libraries that the object needs. Some linkers write whole paths.
void add_needed(const Loaded& object, std::vector<std::string_view>& needed) {
  const char* texts = nullptr;  // the dynamic linker has made an address of it
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) texts = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED) needed.emplace_back(file_name(texts + entry->d_un.d_val));
}

void run_destructors(const Loaded& object) {
  using Destructor = void (*)();
  const Destructor* list = nullptr;
  size_t count = 0;
  Destructor last = nullptr;
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) address = object.base + entry->d_un.d_ptr;
    if (entry->d_tag == DT_FINI_ARRAY) list = reinterpret_cast<const Destructor*>(address);
    if (entry->d_tag == DT_FINI_ARRAYSZ) count = entry->d_un.d_val / sizeof(Destructor);
    if (entry->d_tag == DT_FINI) last = reinterpret_cast<Destructor>(address);
  }
  while (count > 0) list[--count]();
  if (last != nullptr) last();
}

// Packs are what was loaded later and no other library needs. Those that they need stay, so a destructor may use them.
void run_destructors_of_packs() {
  std::vector<Loaded> later = loaded_objects();
  later.erase(later.begin(), later.begin() + static_cast<std::ptrdiff_t>(std::min(g_num_linked, later.size())));
  std::erase_if(later, [](const Loaded& object) { return object.dynamic == nullptr; });
  std::vector<std::string_view> needed;
  for (const Loaded& object : later) add_needed(object, needed);
  for (auto object = later.rbegin(); object != later.rend(); ++object)
    if (std::find(needed.begin(), needed.end(), object->name) == needed.end()) run_destructors(*object);
}

void end_now(int status, void* /*unused*/) {
  run_destructors_of_packs();
  std::cout.flush();  // the last destructor of <iostream> does it, and that is one of libtorch's
  ::fcloseall();  // as exit() does after the last handler; fflush(nullptr) would wait for threads that read a stream
  ::_exit(status);
}

// 101 is the first priority that programs may use. The leak checker of a sanitizer is a destructor too.
__attribute__((constructor(101))) void register_the_end() {
  g_num_linked = loaded_objects().size();
  if (MORTISE_SANITIZED == 0) ::on_exit(end_now, nullptr);
}

}  // namespace
