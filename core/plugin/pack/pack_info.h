// What a pack says about itself: the facts of its ELF note, read without running any of its code.
//
// Cost: a few hundred bytes per plugin. Threading: plain values. Format: docs of the SDK, section "note".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mortise/abi.h"

namespace mortise {

// Values are those of MORTISE_PARAM_*, MORTISE_ROLE_* and MORTISE_COUPLING_* (sdk/include/mortise/pack.h).
enum class ParamType : int32_t { kF64 = 0, kI64 = 1, kBool = 2, kText = 3 };
enum class ParamRole : int32_t { kPlain = 0, kColumn = 1, kFile = 2, kFolder = 3, kModel = 4, kSecret = 5 };
enum class Coupling : int32_t { kToken = 0, kRow = 1, kGroup = 2, kUpdate = 3 };

[[nodiscard]] std::string_view param_type_name(ParamType type);   // "f64", "i64", "bool", "text"
[[nodiscard]] std::string_view param_role_name(ParamRole role);   // "plain", "column", "file", "folder", ...
[[nodiscard]] bool names_place(ParamRole role);                   // a file, a folder or a model folder
[[nodiscard]] std::string_view coupling_name(Coupling coupling);  // "token", "row", "group", "update"

struct ParamRange {
  double min = 0;
  double max = 0;
  bool operator==(const ParamRange&) const = default;
};

struct ParamInfo {
  std::string name;
  ParamType type = ParamType::kF64;
  std::optional<std::string> default_text;  // absent: mandatory
  std::string doc;
  std::optional<ParamRange> range;     // inclusive; an open end is infinite
  std::vector<std::string> choices;    // for a text parameter; empty: any
  ParamRole role = ParamRole::kPlain;  // what the text of a text parameter names
  bool operator==(const ParamInfo&) const = default;
};

struct PluginInfo {
  std::string kind;  // "mortise.policy_loss/1"
  std::string name;  // "gspo"
  std::string summary;
  std::string doc;
  uint32_t flags = 0;  // MORTISE_FLAG_*
  Coupling coupling = Coupling::kToken;
  std::vector<std::string> requires_inputs;
  std::vector<std::string> consumes;
  std::vector<ParamInfo> params;
  std::vector<std::string> update_metrics;  // a policy loss has them, as in its descriptor
  std::vector<std::string> devices;         // "cpu", "cuda", of mortise.device/1; empty: the note says nothing
  bool operator==(const PluginInfo&) const = default;

  [[nodiscard]] const ParamInfo* find_param(std::string_view param) const;
  [[nodiscard]] bool requires_input(std::string_view input) const;
  [[nodiscard]] bool consumes_stage(std::string_view stage) const;
};

// The newest minor of an ABI that this program knows. ABI 0 has ended with 0.2.
inline constexpr int32_t kLastMinorV0 = 2;
[[nodiscard]] constexpr int32_t newest_minor(int32_t abi) { return abi == 0 ? kLastMinorV0 : MORTISE_ABI_MINOR; }
// The minor that a pack's number means. In ABI 1 the numbers 1 and 2 are those of sources of ABI 0 and mean 1.0.
[[nodiscard]] constexpr int32_t meant_minor(int32_t abi, int32_t minor) {
  return abi != 0 && minor <= kLastMinorV0 ? 0 : minor;
}

// Environments had this id in ABI 0.2, with the same structs.
inline constexpr std::string_view kDraftEnvironment = "mortise.environment/0";
// The id of a pack's kind today.
[[nodiscard]] std::string current_kind(std::string id);

struct PackInfo {
  std::string path;    // absolute
  std::string sha256;  // hash of the whole file, 64 hex digits
  std::string id;      // "acme.match"
  std::string version;
  int32_t abi = MORTISE_ABI_MAJOR;
  int32_t abi_minor = 0;
  int32_t min_host_minor = 0;
  std::string tier = "portable";           // portable, torch-locked
  std::string torch;                       // torch-locked: the exact version, eg "2.11.0"
  std::vector<std::string> allowed_needs;  // libraries beyond the C and C++ runtimes that the note lists
  std::vector<PluginInfo> plugins;

  [[nodiscard]] const PluginInfo* find_plugin(std::string_view kind, std::string_view name) const;
  [[nodiscard]] std::string short_hash() const { return sha256.substr(0, 12); }
  [[nodiscard]] std::string label() const { return id + "@" + version; }  // "acme.match@1.0.0"
};

}  // namespace mortise
