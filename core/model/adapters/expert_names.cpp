// See expert_names.h.
#include "model/adapters/expert_names.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace mortise {
namespace {

constexpr std::string_view kExperts = ".experts.";

}  // namespace

std::string transformers_name(std::string name) {
  constexpr std::string_view kOld = ".block_sparse_moe.";
  if (const size_t at = name.find(kOld); at != std::string::npos) name.replace(at, kOld.size(), ".mlp.");
  return name;
}

bool is_router(std::string_view module) { return module.ends_with(".mlp.gate") || module.ends_with(".mlp.router"); }

std::string expert_module(const std::string& stack) { return stack.substr(0, stack.rfind('.')); }

std::string expert_stack_of(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return {};
  const std::string prefix = transformers_name(std::string(name.substr(0, at + kExperts.size())));
  std::string_view rest = name.substr(at + kExperts.size());
  if (rest == "gate_up_proj" || rest == "down_proj") return prefix + std::string(rest);
  size_t digits = 0;
  while (digits < rest.size() && std::isdigit(static_cast<unsigned char>(rest[digits])) != 0) ++digits;
  if (digits == 0 || digits == rest.size() || rest[digits] != '.') return {};
  rest.remove_prefix(digits + 1);
  if (rest.ends_with(".weight")) rest.remove_suffix(std::string_view(".weight").size());
  for (const std::string_view part : {"gate_proj", "up_proj", "w1", "w3"}) {
    if (rest == part) return prefix + "gate_up_proj";
  }
  for (const std::string_view part : {"down_proj", "w2"}) {
    if (rest == part) return prefix + "down_proj";
  }
  return {};
}

bool names_parameter(std::span<const std::string> targets, std::string_view parameter) {
  return std::ranges::any_of(
      targets, [&](const std::string& target) { return parameter == target || parameter.ends_with("." + target); });
}

}  // namespace mortise
