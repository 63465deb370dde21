// What `mortise plugin list` and `describe` print, as tables and as JSON.
#pragma once

#include <string>

#include "foundation/formats/json.h"
#include "plugin/host/registry.h"

namespace mortise {

// {"plugins", "rejected", "searched"}; `kind` "" = all.
Json list_json(const PluginRegistry& registry, const std::string& kind);
// The same for people, to standard output.
void print_list(const Json& list);

// One parameter with its type, default, range and meaning.
Json param_json(const ParamInfo& param);

Json describe_json(const PluginRef& ref);
void print_description(const PluginRef& ref);

}  // namespace mortise
