// Reads program headers, the dynamic section, symbols and notes, with every offset checked.
#include "plugin/pack/elf_reader.h"

#include <fmt/core.h>

#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "foundation/base/text.h"
#include "plugin/pack/elf_bytes.h"
#include "plugin/pack/elf_tags.h"

namespace mortise {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kHostMachine = EM_X86_64;
constexpr std::string_view kHostMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kHostMachine = EM_AARCH64;
constexpr std::string_view kHostMachineName = "aarch64";
#else
#error "unknown machine: add its ELF number"
#endif

// More than any pack has; a bound on the work that a forged header can ask for.
constexpr uint64_t kMaxSymbols = 1 << 20;
constexpr uint64_t kMaxDynamicEntries = 1 << 16;
constexpr uint64_t kMaxNotes = 1 << 10;

constexpr uint64_t kPageBytes = 4096;  // the smallest page that a loader maps

std::string hex_text(uint64_t value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

struct Dynamic {
  uint64_t strtab = 0, strsz = 0, symtab = 0, syment = sizeof(Elf64_Sym), hash = 0, gnu_hash = 0;
  uint64_t flags = 0, flags_1 = 0, soname = 0;
  bool has_soname = false, textrel = false;
  std::vector<uint64_t> needed, runpaths;
  std::vector<Elf64_Dyn> unexpected;
};

class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string_view where) : bytes_(file), where_(where) {}

  Result<ElfSummary> read() {
    TRY(read_header());
    TRY(check_segments());
    TRY(read_dynamic());
    TRY(read_strings());
    TRY(read_symbols());
    TRY(read_notes());
    std::sort(out_.exports.begin(), out_.exports.end());
    std::sort(out_.undefined.begin(), out_.undefined.end());
    return std::move(out_);
  }

 private:
  [[nodiscard]] Error damaged(std::string what) const {
    return {ErrorKind::kPlugin, "damaged ELF file: " + what, std::string(where_), "build or copy the pack again"};
  }
  [[nodiscard]] Error refused(std::string what, std::string next) const {
    return {ErrorKind::kPlugin, std::move(what), std::string(where_), std::move(next)};
  }

  Result<> read_header();
  Result<> read_dynamic();
  Result<> check_segments() const;
  void note_entry(const Elf64_Dyn& entry);
  Result<> read_strings();
  Result<> read_unexpected();
  Result<> read_symbols();
  Result<uint64_t> count_symbols() const;
  Result<uint64_t> count_gnu_hash() const;
  Result<> read_notes();
  Result<> read_note_segment(const Elf64_Phdr& header);
  // File offset of `count` bytes at a virtual address, all inside one PT_LOAD's file part.
  [[nodiscard]] std::optional<uint64_t> file_offset(uint64_t address, uint64_t count) const;
  [[nodiscard]] std::optional<std::string> string_at(uint64_t index) const;

  ElfBytes bytes_;
  std::string_view where_;
  std::vector<Elf64_Phdr> headers_;
  Dynamic dynamic_;
  uint64_t strtab_offset_ = 0;
  ElfSummary out_;
};

Result<> Reader::read_header() {
  const auto ident = bytes_.read<Elf64_Ehdr>(0);
  if (!ident) {
    const bool magic = bytes_.size() >= SELFMAG && bytes_.text(0, SELFMAG) == std::string_view(ELFMAG, SELFMAG);
    return magic ? damaged("it ends inside the file header")
                 : refused("not a shared object: no ELF header", "name a pack made by mortise_add_pack()");
  }
  if (std::memcmp(ident->e_ident, ELFMAG, SELFMAG) != 0) {
    return refused("not a shared object: no ELF header", "name a pack made by mortise_add_pack()");
  }
  if (ident->e_ident[EI_CLASS] != ELFCLASS64 || ident->e_ident[EI_DATA] != ELFDATA2LSB ||
      ident->e_machine != kHostMachine) {
    return refused("built for another machine than this " + std::string(kHostMachineName),
                   "build the pack for " + std::string(kHostMachineName));
  }
  if (ident->e_type != ET_DYN) {
    return refused(fmt::format("not a shared object (ELF type {})", ident->e_type), "link the pack with -shared");
  }
  if (ident->e_phentsize != sizeof(Elf64_Phdr)) return damaged("program headers of a wrong size");
  if (!bytes_.contains(ident->e_phoff, uint64_t{ident->e_phnum} * sizeof(Elf64_Phdr))) {
    return damaged("program headers lie outside the file");
  }
  bool has_stack = false;
  for (uint64_t i = 0; i < ident->e_phnum; ++i) {
    const auto header = *bytes_.read<Elf64_Phdr>(ident->e_phoff + i * sizeof(Elf64_Phdr));
    if (header.p_type == PT_GNU_STACK) {
      has_stack = true;
      out_.executable_stack = (header.p_flags & PF_X) != 0;
    }
    if (header.p_type == PT_INTERP) out_.is_program = true;
    headers_.push_back(header);
  }
  if (!has_stack) out_.executable_stack = true;  // what the loader assumes
  return {};
}

std::optional<uint64_t> Reader::file_offset(uint64_t address, uint64_t count) const {
  for (const Elf64_Phdr& header : headers_) {
    if (header.p_type != PT_LOAD || address < header.p_vaddr) continue;
    const uint64_t delta = address - header.p_vaddr;
    if (delta > header.p_filesz || count > header.p_filesz - delta) continue;
    if (header.p_offset > std::numeric_limits<uint64_t>::max() - delta) return std::nullopt;
    const uint64_t offset = header.p_offset + delta;
    if (bytes_.contains(offset, count)) return offset;
  }
  return std::nullopt;
}

// The loader maps whole pages, a later segment over an earlier one: where two share a page, what it reads is not what
// the file has at the place that the first segment names.
Result<> Reader::check_segments() const {
  uint64_t mapped_end = 0;
  bool any = false;
  for (const Elf64_Phdr& header : headers_) {
    if (header.p_type != PT_LOAD) continue;
    if (header.p_filesz > header.p_memsz) return damaged("a segment has more bytes in the file than in memory");
    if (!bytes_.contains(header.p_offset, header.p_filesz)) return damaged("a segment lies outside the file");
    if (header.p_vaddr % kPageBytes != header.p_offset % kPageBytes)
      return damaged("a segment's place in the file and in memory do not fit together");
    uint64_t end = 0;
    if (__builtin_add_overflow(header.p_vaddr, header.p_memsz, &end) ||
        end > std::numeric_limits<uint64_t>::max() - kPageBytes)
      return damaged("a segment lies outside the address space");
    if (any && header.p_vaddr / kPageBytes * kPageBytes < mapped_end)
      return damaged("two loaded segments overlap, or they are not in order");
    mapped_end = (end + kPageBytes - 1) / kPageBytes * kPageBytes;
    any = true;
  }
  return {};
}

void Reader::note_entry(const Elf64_Dyn& entry) {
  const uint64_t value = entry.d_un.d_val;
  switch (entry.d_tag) {
    case DT_STRTAB:
      dynamic_.strtab = value;
      break;
    case DT_STRSZ:
      dynamic_.strsz = value;
      break;
    case DT_SYMTAB:
      dynamic_.symtab = value;
      break;
    case DT_SYMENT:
      dynamic_.syment = value;
      break;
    case DT_HASH:
      dynamic_.hash = value;
      break;
    case DT_GNU_HASH:
      dynamic_.gnu_hash = value;
      break;
    case DT_FLAGS:
      dynamic_.flags = value;
      break;
    case DT_FLAGS_1:
      dynamic_.flags_1 = value;
      break;
    case DT_TEXTREL:
      dynamic_.textrel = true;
      break;
    case DT_NEEDED:
      dynamic_.needed.push_back(value);
      break;
    case DT_RPATH:
    case DT_RUNPATH:
      dynamic_.runpaths.push_back(value);
      break;
    case DT_SONAME:
      dynamic_.soname = value;
      dynamic_.has_soname = true;
      break;
    default:
      if (!is_allowed_tag(entry.d_tag)) dynamic_.unexpected.push_back(entry);
      break;
  }
}

Result<> Reader::read_dynamic() {
  const auto found =
      std::find_if(headers_.begin(), headers_.end(), [](const Elf64_Phdr& h) { return h.p_type == PT_DYNAMIC; });
  if (found == headers_.end()) return damaged("no dynamic section");
  const auto is_dynamic = [](const Elf64_Phdr& h) { return h.p_type == PT_DYNAMIC; };
  if (std::count_if(headers_.begin(), headers_.end(), is_dynamic) != 1)
    return damaged("more than one dynamic section");  // the loader takes the last
  // The loader finds it by address; an address that means other bytes than p_offset is a forgery.
  const auto offset = file_offset(found->p_vaddr, found->p_filesz);
  if (!offset || *offset != found->p_offset) return damaged("the dynamic section lies outside the loaded part");
  const uint64_t num_entries = found->p_filesz / sizeof(Elf64_Dyn);
  if (num_entries > kMaxDynamicEntries) return damaged("the dynamic section is too long");
  bool ended = false;
  std::set<int64_t> seen;
  for (uint64_t i = 0; i < num_entries && !ended; ++i) {
    const auto entry = *bytes_.read<Elf64_Dyn>(*offset + i * sizeof(Elf64_Dyn));
    ended = entry.d_tag == DT_NULL;
    if (ended) break;
    if (!seen.insert(entry.d_tag).second && entry.d_tag != DT_NEEDED && entry.d_tag != DT_AUXILIARY)
      return damaged(
          fmt::format("the dynamic section has the tag {} twice", hex_text(static_cast<uint64_t>(entry.d_tag))));
    note_entry(entry);
  }
  if (!ended) return damaged("the dynamic section has no end");  // the loader would read on behind it
  out_.nodelete = (dynamic_.flags_1 & DF_1_NODELETE) != 0;
  out_.is_program = out_.is_program || (dynamic_.flags_1 & DF_1_PIE) != 0;
  out_.text_relocations = dynamic_.textrel || (dynamic_.flags & DF_TEXTREL) != 0;
  return {};
}

std::optional<std::string> Reader::string_at(uint64_t index) const {
  if (index >= dynamic_.strsz) return std::nullopt;
  const std::string_view rest = bytes_.text(strtab_offset_ + index, dynamic_.strsz - index);
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(rest.substr(0, end));
}

Result<> Reader::read_strings() {
  const auto offset = file_offset(dynamic_.strtab, dynamic_.strsz);
  if (!offset || dynamic_.strsz == 0) return damaged("the dynamic string table lies outside the file");
  strtab_offset_ = *offset;
  for (const uint64_t index : dynamic_.needed) {
    auto name = string_at(index);
    if (!name) return damaged("the name of a needed library lies outside the string table");
    out_.needed.push_back(*std::move(name));
  }
  for (const uint64_t index : dynamic_.runpaths) {
    auto name = string_at(index);
    if (!name) return damaged("a run path lies outside the string table");
    out_.runpaths.push_back(*std::move(name));
  }
  if (dynamic_.has_soname) {
    auto name = string_at(dynamic_.soname);
    if (!name) return damaged("the soname lies outside the string table");
    out_.soname = *std::move(name);
  }
  return read_unexpected();
}

Result<> Reader::read_unexpected() {
  for (const Elf64_Dyn& entry : dynamic_.unexpected) {
    const NamedTag* known = find_named_tag(entry.d_tag);
    if (known == nullptr) {
      out_.unexpected.push_back("tag " + hex_text(static_cast<uint64_t>(entry.d_tag)));
      continue;
    }
    const auto text = known->has_text ? string_at(entry.d_un.d_val) : std::nullopt;
    out_.unexpected.push_back(std::string(known->name) + (text ? " " + quote(*text) : ""));
  }
  if (const uint64_t flags = dynamic_.flags & ~kAllowedDynamicFlags; flags != 0)
    out_.unexpected.push_back("DT_FLAGS " + hex_text(flags));
  if (const uint64_t flags = dynamic_.flags_1 & ~kAllowedDynamicFlags1; flags != 0)
    out_.unexpected.push_back("DT_FLAGS_1 " + hex_text(flags));
  return {};
}

// The GNU table has no count: it is one past the last symbol of the chain that starts highest.
Result<uint64_t> Reader::count_gnu_hash() const {
  const auto base = file_offset(dynamic_.gnu_hash, 16);
  if (!base) return damaged("the GNU hash table lies outside the file");
  const uint64_t num_buckets = *bytes_.read<uint32_t>(*base);
  const uint64_t first_symbol = *bytes_.read<uint32_t>(*base + 4);
  const uint64_t bloom_words = *bytes_.read<uint32_t>(*base + 8);
  const uint64_t buckets = dynamic_.gnu_hash + 16 + bloom_words * 8;
  if (buckets < dynamic_.gnu_hash || num_buckets > kMaxSymbols) return damaged("the GNU hash table is too large");
  const auto buckets_offset = file_offset(buckets, num_buckets * 4);
  if (!buckets_offset) return damaged("the GNU hash buckets lie outside the file");
  uint64_t last = 0;
  for (uint64_t i = 0; i < num_buckets; ++i) {
    last = std::max<uint64_t>(last, *bytes_.read<uint32_t>(*buckets_offset + i * 4));
  }
  if (last == 0) return first_symbol;  // no defined symbols: those before it are undefined
  if (last < first_symbol) return damaged("a GNU hash bucket points before the first symbol");
  const uint64_t chain = buckets + num_buckets * 4;
  for (;; ++last) {
    if (last - first_symbol > kMaxSymbols) return damaged("a GNU hash chain has no end");
    const auto offset = file_offset(chain + (last - first_symbol) * 4, 4);
    if (!offset) return damaged("a GNU hash chain runs out of the file");
    if ((*bytes_.read<uint32_t>(*offset) & 1U) != 0) return last + 1;
  }
}

Result<uint64_t> Reader::count_symbols() const {
  uint64_t count = 0;
  if (dynamic_.hash == 0 && dynamic_.gnu_hash == 0) return damaged("no symbol hash table");
  if (dynamic_.hash != 0) {
    const auto offset = file_offset(dynamic_.hash, 8);
    if (!offset) return damaged("the hash table lies outside the file");
    count = *bytes_.read<uint32_t>(*offset + 4);
  }
  if (dynamic_.gnu_hash != 0) count = std::max<uint64_t>(count, TRY(count_gnu_hash()));
  if (count > kMaxSymbols) return damaged("too many dynamic symbols");
  return count;
}

Result<> Reader::read_symbols() {
  if (dynamic_.syment != sizeof(Elf64_Sym)) return damaged("dynamic symbols of a wrong size");
  const uint64_t count = TRY(count_symbols());
  const auto offset = file_offset(dynamic_.symtab, count * sizeof(Elf64_Sym));
  if (!offset) return damaged("the dynamic symbols lie outside the file");
  for (uint64_t i = 1; i < count; ++i) {  // entry 0 is always empty
    const auto symbol = *bytes_.read<Elf64_Sym>(*offset + i * sizeof(Elf64_Sym));
    const auto binding = ELF64_ST_BIND(symbol.st_info);
    if (binding == STB_LOCAL) continue;
    auto name = string_at(symbol.st_name);
    if (!name) return damaged("a symbol's name lies outside the string table");
    if (symbol.st_shndx == SHN_UNDEF) {
      out_.undefined.push_back(*std::move(name));
      continue;
    }
    const auto visibility = ELF64_ST_VISIBILITY(symbol.st_other);
    if (visibility == STV_DEFAULT || visibility == STV_PROTECTED) out_.exports.push_back(*std::move(name));
  }
  return {};
}

Result<> Reader::read_note_segment(const Elf64_Phdr& header) {
  if (!bytes_.contains(header.p_offset, header.p_filesz)) return damaged("a note segment lies outside the file");
  const uint64_t align = header.p_align == 8 ? 8 : 4;  // anything else means 4
  const auto padded = [align](uint64_t size) { return (size + align - 1) & ~(align - 1); };
  uint64_t at = 0;
  while (header.p_filesz - at >= sizeof(Elf64_Nhdr)) {
    const auto note = *bytes_.read<Elf64_Nhdr>(header.p_offset + at);
    // Name and description are both padded from the start of the note.
    const uint64_t name_at = at + sizeof(Elf64_Nhdr);
    const uint64_t desc_at = at + padded(sizeof(Elf64_Nhdr) + uint64_t{note.n_namesz});
    if (desc_at > header.p_filesz || note.n_descsz > header.p_filesz - desc_at) {
      return damaged("a note runs over the end of its segment");
    }
    if (out_.notes.size() >= kMaxNotes) return damaged("too many notes");
    std::string_view owner = bytes_.text(header.p_offset + name_at, note.n_namesz);
    owner = owner.substr(0, owner.find('\0'));
    out_.notes.push_back({std::string(owner), note.n_type, bytes_.text(header.p_offset + desc_at, note.n_descsz)});
    at = desc_at + padded(note.n_descsz);
    if (at >= header.p_filesz) break;
  }
  return {};
}

Result<> Reader::read_notes() {
  for (const Elf64_Phdr& header : headers_) {
    if (header.p_type == PT_NOTE) TRY(read_note_segment(header));
  }
  return {};
}

}  // namespace

Result<ElfSummary> read_elf(std::span<const std::byte> file, std::string_view where) {
  return Reader(file, where).read();
}

}  // namespace mortise
