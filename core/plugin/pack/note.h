// The metadata note of a pack (`.note.mortise`, owner "Mortise", type 1): JSON text to PackInfo.
//
//   {"abi":1, "abi_minor":0, "min_host_minor":0, "pack":{"id":"acme.match", "version":"1.0.0"},
//    "plugins":[{"kind":"mortise.reward/1", "name":"exact_match", "summary":"...", "doc":"..."|null, "flags":0,
//                "coupling":"token"|"row"|"group"|"update", "requires":[], "consumes":[], "update_metrics":[],
//                "devices":["cpu","cuda"],
//                "params":[{"name":"hit", "type":"f64"|"i64"|"bool"|"text", "default":"1.0"|null, "min":0, "max":1,
//                           "choices":["a","b"], "role":"column", "doc":"..."}]}],
//    "needs":["libfoo.so.1"], "build":{"compiler":"GNU 12.2.0", "torch":"2.11.0", "cuda":"12.4"}}
// min or max left out is an open end; role left out is "plain"; update_metrics is of minor 2; a pack with build.torch
// is of the torch-locked tier. Only a plugin with mortise.device/1 has devices, and Rust's pack! leaves them out.
// Unknown members are left for later minors. Everything else is checked: types, grammar of ids and names, duplicates,
// and that each default is a legal value of its parameter. Threading: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "foundation/base/result.h"
#include "plugin/pack/elf_reader.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

inline constexpr std::string_view kNoteOwner = "Mortise";
inline constexpr uint32_t kNoteType = 1;

// The text of the one Mortise note. No note and two notes are errors.
[[nodiscard]] Result<std::string_view> find_note(const ElfSummary& elf, std::string_view where);

// path and sha256 of the result are left empty.
[[nodiscard]] Result<PackInfo> parse_note(std::string_view text, std::string_view where);

// "12.4" or "12": a version of CUDA. cuda_of_note: the one that the pack was built with, "" if none of it is for CUDA.
[[nodiscard]] bool is_cuda_version(std::string_view text);
[[nodiscard]] Result<std::string> cuda_of_note(std::string_view text, std::string_view where);

// The message for a pack of another ABI major, wherever it shows.
[[nodiscard]] Error other_abi(std::string_view abi, std::string_view where);

// Grammar: [a-z][a-z0-9_]*  and  dotted words of [a-z0-9_-], at least two.
[[nodiscard]] bool is_plugin_name(std::string_view name);
[[nodiscard]] bool is_pack_id(std::string_view id);

}  // namespace mortise
