// `mortise plugin new`: a project for a plugin, from the templates of the SDK.
//
// Templates are files (share/mortise/templates/LANG/{common,KIND}); words between @ are replaced, nothing is generated.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"

namespace mortise {

struct NewPlugin {
  std::string kind;             // "reward"
  std::string pack;             // "acme.match"
  std::string name;             // "match"
  std::string lang;             // c, cpp, torch, cuda or rust
  std::filesystem::path dir;    // to be made; must not be there, or be empty
  std::filesystem::path share;  // folder with templates/ and rust/
};

// `id` is "pack.id" or "pack.id/plugin"; the plugin's name is by default the last word of the pack's.
[[nodiscard]] Result<NewPlugin> plan_new_plugin(const std::string& kind, std::string_view id, const std::string& lang);

// Writes the project; the files, relative to its folder, in order. Nothing is written where the folder holds something.
[[nodiscard]] Result<std::vector<std::string>> write_new_plugin(const NewPlugin& plan);

// <program>/../share/mortise, in a build tree as in an installation.
[[nodiscard]] std::filesystem::path default_share_dir();

// The command; `args` are the words after `new`.
[[nodiscard]] Result<> run_plugin_new(Arguments args);

}  // namespace mortise
