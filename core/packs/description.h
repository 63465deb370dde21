// pack.toml: what a pack says about itself, made by `mortise pack build` from the author's own pack.toml and the notes
// of the builds.
//
//   format = 1                                 # the version of this format
//   id = "acme.match"   version = "1.0.0"      # as in the notes
//   license, summary, homepage = "..."   authors, needs = ["..."]
//   [[build]]  file, sha256, size, os, arch, cpu, tier, torch, cuda     # one for each platform
//   [[plugin]] kind, name, summary, doc, flags, coupling, requires, consumes; [[plugin.param]] as in a note
//   [[test]]   file = "tests/match.toml"       # golden tests
// Unknown keys are refused. Cost: O(size), at most 1 MiB. Threading: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

struct PackBuild {
  std::string file;    // "lib/linux-x86_64/acme.match.so"
  std::string sha256;  // hash of the file, as the loader has it
  uint64_t size = 0;
  std::string os = "linux", arch;
  std::string cpu;  // lowest level that runs it: "x86-64", "x86-64-v2", "-v3", "-v4"; of other machines the arch
  std::string tier = "portable", torch;        // as in PackInfo
  std::string cuda;                            // "12.4", of the toolkit; empty: none
  [[nodiscard]] std::string platform() const;  // "linux x86_64, x86-64-v3, torch 2.11.0"
};

struct PackDescription {
  std::string id, version, license, summary, homepage;
  std::vector<std::string> authors, needs;
  std::vector<PackBuild> builds;
  std::vector<PluginInfo> plugins;
  std::vector<std::string> tests;
  [[nodiscard]] std::string label() const { return id + "@" + version; }
};

// Rules P11 to P14, as far as the text alone can show.
Result<PackDescription> parse_description(std::string_view text, std::string_view where);
[[nodiscard]] std::string description_text(const PackDescription& pack);

// The author's file: as above, without what the build adds. A [[build]] there names a file and may set cpu and cuda.
Result<PackDescription> parse_source_description(std::string_view text, std::string_view where);

// The plugin tables alone, to compare: two lists of one text are the same for whoever reads pack.toml.
[[nodiscard]] std::string plugins_text(const std::vector<PluginInfo>& plugins);

// A line for each plugin on what it may do to the machine that it runs on.
[[nodiscard]] std::vector<std::string> rights_of(const PackDescription& pack);

// 64 lower-case hex digits.
[[nodiscard]] bool is_sha256_text(std::string_view text);

// Rules P12 and P13.
Result<> check_pack_id(std::string_view id, std::string_view where);
Result<> check_pack_version(std::string_view version, std::string_view where);

}  // namespace mortise
