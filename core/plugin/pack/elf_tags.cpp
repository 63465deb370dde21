// The lists of tags; see elf_tags.h.
#include "plugin/pack/elf_tags.h"

#include <algorithm>
#include <array>

namespace mortise {
namespace {

// A list of allowed tags, because a loader may learn new ones.
constexpr std::array kAllowedTags = {
    int64_t{DT_NEEDED},
    int64_t{DT_PLTRELSZ},
    int64_t{DT_PLTGOT},
    int64_t{DT_HASH},
    int64_t{DT_STRTAB},
    int64_t{DT_SYMTAB},
    int64_t{DT_RELA},
    int64_t{DT_RELASZ},
    int64_t{DT_RELAENT},
    int64_t{DT_STRSZ},
    int64_t{DT_SYMENT},
    int64_t{DT_INIT},
    int64_t{DT_FINI},
    int64_t{DT_SONAME},
    int64_t{DT_RPATH},
    int64_t{DT_SYMBOLIC},
    int64_t{DT_PLTREL},
    int64_t{DT_DEBUG},
    int64_t{DT_TEXTREL},
    int64_t{DT_JMPREL},
    int64_t{DT_BIND_NOW},
    int64_t{DT_INIT_ARRAY},
    int64_t{DT_FINI_ARRAY},
    int64_t{DT_INIT_ARRAYSZ},
    int64_t{DT_FINI_ARRAYSZ},
    int64_t{DT_RUNPATH},
    int64_t{DT_FLAGS},
    int64_t{35} /* DT_RELRSZ */,
    int64_t{36} /* DT_RELR */,
    int64_t{37} /* DT_RELRENT */,
    int64_t{DT_GNU_HASH},
    int64_t{DT_TLSDESC_PLT},
    int64_t{DT_TLSDESC_GOT},
    int64_t{DT_VERSYM},
    int64_t{DT_RELACOUNT},
    int64_t{DT_RELCOUNT},
    int64_t{DT_FLAGS_1},
    int64_t{DT_VERDEF},
    int64_t{DT_VERDEFNUM},
    int64_t{DT_VERNEED},
    int64_t{DT_VERNEEDNUM},
#if defined(__x86_64__)
    int64_t{0x70000000} /* DT_X86_64_PLT */,
    int64_t{0x70000001} /* DT_X86_64_PLTSZ */,
    int64_t{0x70000003} /* DT_X86_64_PLTENT */,
#elif defined(__aarch64__)
    int64_t{0x70000001} /* DT_AARCH64_BTI_PLT */,
    int64_t{0x70000003} /* DT_AARCH64_PAC_PLT */,
    int64_t{0x70000005} /* DT_AARCH64_VARIANT_PCS */,
#endif
};

constexpr std::array<NamedTag, 8> kNamedTags = {{{DT_AUXILIARY, "DT_AUXILIARY", true},
                                                 {DT_FILTER, "DT_FILTER", true},
                                                 {DT_AUDIT, "DT_AUDIT", true},
                                                 {DT_DEPAUDIT, "DT_DEPAUDIT", true},
                                                 {DT_CONFIG, "DT_CONFIG", true},
                                                 {DT_PREINIT_ARRAY, "DT_PREINIT_ARRAY", false},
                                                 {DT_REL, "DT_REL", false},
                                                 {DT_GNU_LIBLIST, "DT_GNU_LIBLIST", false}}};

}  // namespace

bool is_allowed_tag(int64_t tag) {
  return std::find(kAllowedTags.begin(), kAllowedTags.end(), tag) != kAllowedTags.end();
}

const NamedTag* find_named_tag(int64_t tag) {
  const auto found =
      std::find_if(kNamedTags.begin(), kNamedTags.end(), [&](const NamedTag& one) { return one.number == tag; });
  return found == kNamedTags.end() ? nullptr : &*found;
}

}  // namespace mortise
