// Names of the enums, and look-ups in the lists of a plugin.
#include "plugin/pack/pack_info.h"

#include <algorithm>

#include "mortise/kinds/environment.h"

namespace mortise {

std::string current_kind(std::string id) {
  return id == kDraftEnvironment ? std::string(MORTISE_KIND_ENVIRONMENT) : id;
}

std::string_view param_type_name(ParamType type) {
  switch (type) {
    case ParamType::kF64:
      return "f64";
    case ParamType::kI64:
      return "i64";
    case ParamType::kBool:
      return "bool";
    case ParamType::kText:
      return "text";
  }
  return "unknown";
}

std::string_view param_role_name(ParamRole role) {
  switch (role) {
    case ParamRole::kPlain:
      return "plain";
    case ParamRole::kColumn:
      return "column";
    case ParamRole::kFile:
      return "file";
    case ParamRole::kFolder:
      return "folder";
    case ParamRole::kModel:
      return "model";
    case ParamRole::kSecret:
      return "secret";
  }
  return "plain";
}

bool names_place(ParamRole role) {
  return role == ParamRole::kFile || role == ParamRole::kFolder || role == ParamRole::kModel;
}

std::string_view coupling_name(Coupling coupling) {
  switch (coupling) {
    case Coupling::kToken:
      return "token";
    case Coupling::kRow:
      return "row";
    case Coupling::kGroup:
      return "group";
    case Coupling::kUpdate:
      return "update";
  }
  return "unknown";
}

const ParamInfo* PluginInfo::find_param(std::string_view param) const {
  const auto it = std::find_if(params.begin(), params.end(), [&](const ParamInfo& p) { return p.name == param; });
  return it == params.end() ? nullptr : &*it;
}

bool PluginInfo::requires_input(std::string_view input) const {
  return std::find(requires_inputs.begin(), requires_inputs.end(), input) != requires_inputs.end();
}

bool PluginInfo::consumes_stage(std::string_view stage) const {
  return std::find(consumes.begin(), consumes.end(), stage) != consumes.end();
}

const PluginInfo* PackInfo::find_plugin(std::string_view kind, std::string_view name) const {
  const auto it = std::find_if(plugins.begin(), plugins.end(),
                               [&](const PluginInfo& p) { return p.kind == kind && p.name == name; });
  return it == plugins.end() ? nullptr : &*it;
}

}  // namespace mortise
