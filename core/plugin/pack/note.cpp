// Parses the JSON of the note, and checks names, versions and parameters.
#include "plugin/pack/note.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "mortise/abi.h"
#include "plugin/host/params.h"
#include "plugin/pack/semver.h"
#include "plugin/pack/tier.h"

namespace mortise {
namespace {

constexpr uint64_t kMaxNoteBytes = 1 << 20;
constexpr std::string_view kNext = "build the pack again with the SDK's mortise_add_pack(), which writes the note";
constexpr std::string_view kRename = "choose another name in its source";

bool is_lower_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Reads members of one JSON object and keeps the first fault, so that a parser reads straight through and checks once.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("must be an object");
  }
  std::string text(std::string_view key, bool mandatory = true) {
    const Json* value = find(key, mandatory);
    if (value == nullptr || value->is_null()) return {};
    if (!value->is_string()) return fail(quote(key) + " must be a string"), std::string();
    return value->get<std::string>();
  }
  int64_t integer(std::string_view key, int64_t low, int64_t high, bool mandatory = true) {
    const Json* value = find(key, mandatory);
    if (value == nullptr) return low;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) &&
                      value->get<int64_t>() >= low && value->get<int64_t>() <= high;
    if (!fits) return fail(fmt::format("{} must be an integer of {} to {}", quote(key), low, high)), low;
    return value->get<int64_t>();
  }
  std::optional<double> number(std::string_view key) {
    const Json* value = find(key, false);
    if (value == nullptr || value->is_null()) return std::nullopt;
    if (!value->is_number()) return fail(quote(key) + " must be a number"), std::nullopt;
    return value->get<double>();
  }
  std::vector<std::string> texts(std::string_view key) {
    std::vector<std::string> out;
    const Json* value = find(key, false);
    if (value == nullptr || value->is_null()) return out;
    if (!value->is_array()) return fail(quote(key) + " must be an array of strings"), out;
    for (const Json& item : *value) {
      if (!item.is_string()) return fail(quote(key) + " must be an array of strings"), out;
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  const Json* array(std::string_view key, bool mandatory) {
    const Json* value = find(key, mandatory);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) return fail(quote(key) + " must be an array"), nullptr;
    return value;
  }
  void fail(std::string what, std::string_view next = kNext) {
    if (!error_) error_ = Error{ErrorKind::kPlugin, "bad metadata note: " + what, where_, std::string(next)};
  }
  Result<> done() const { return error_ ? Result<>(*error_) : Result<>(); }

 private:
  const Json* find(std::string_view key, bool mandatory) {
    const Json* value = error_ ? nullptr : json_find(object_, key);
    if (value == nullptr && mandatory) fail(quote(key) + " is missing");
    return value;
  }
  const Json& object_;
  std::string where_;
  std::optional<Error> error_;
};

std::optional<Coupling> parse_coupling(std::string_view name) {
  for (const Coupling coupling : {Coupling::kToken, Coupling::kRow, Coupling::kGroup, Coupling::kUpdate}) {
    if (coupling_name(coupling) == name) return coupling;
  }
  return std::nullopt;
}

std::optional<ParamType> parse_type(std::string_view name) {
  for (const ParamType type : {ParamType::kF64, ParamType::kI64, ParamType::kBool, ParamType::kText}) {
    if (param_type_name(type) == name) return type;
  }
  return std::nullopt;
}

// A role that this host does not know is one of a later minor: plain here.
ParamRole parse_role(std::string_view name) {
  for (const ParamRole role :
       {ParamRole::kColumn, ParamRole::kFile, ParamRole::kFolder, ParamRole::kModel, ParamRole::kSecret}) {
    if (param_role_name(role) == name) return role;
  }
  return ParamRole::kPlain;
}

Result<ParamInfo> parse_param(const Json& object, const std::string& where) {
  Fields fields(object, where);
  ParamInfo param;
  param.name = fields.text("name");
  const auto type = parse_type(fields.text("type"));
  if (!type) fields.fail(fmt::format("the type of parameter {} must be f64, i64, bool or text", quote(param.name)));
  param.type = type.value_or(ParamType::kText);
  if (const Json* text = json_find(object, "default"); text != nullptr && !text->is_null()) {
    param.default_text = fields.text("default");
  }
  param.doc = fields.text("doc", false);
  const auto min = fields.number("min");
  const auto max = fields.number("max");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (min || max) param.range = ParamRange{min.value_or(-kInfinity), max.value_or(kInfinity)};
  param.choices = fields.texts("choices");
  param.role = parse_role(fields.text("role", false));
  if (!is_plugin_name(param.name))
    fields.fail(fmt::format("parameter name {} is not [a-z][a-z0-9_]*", quote(param.name)), kRename);
  TRY(fields.done());
  if (param.default_text) {
    if (auto value = default_value(param); !value.ok()) {
      fields.fail(
          fmt::format("the default of parameter {} is not a legal value: {}", quote(param.name), value.error().what),
          "correct it in the pack's source");
    }
  }
  TRY(fields.done());
  return param;
}

Result<PluginInfo> parse_plugin(const Json& object, const std::string& where) {
  Fields fields(object, where);
  PluginInfo plugin;
  plugin.kind = current_kind(fields.text("kind"));
  plugin.name = fields.text("name");
  plugin.summary = fields.text("summary", false);
  plugin.doc = fields.text("doc", false);
  plugin.flags = static_cast<uint32_t>(fields.integer("flags", 0, UINT32_MAX, false));
  if (const std::string name = fields.text("coupling", false); !name.empty()) {
    const auto coupling = parse_coupling(name);
    if (!coupling) fields.fail(fmt::format("coupling {} must be token, row, group or update", quote(name)));
    plugin.coupling = coupling.value_or(Coupling::kUpdate);
  }
  plugin.requires_inputs = fields.texts("requires");
  plugin.consumes = fields.texts("consumes");
  plugin.update_metrics = fields.texts("update_metrics");
  plugin.devices = fields.texts("devices");
  if (!is_plugin_name(plugin.name))
    fields.fail(fmt::format("plugin name {} is not [a-z][a-z0-9_]*", quote(plugin.name)), kRename);
  const Json* params = fields.array("params", false);
  TRY(fields.done());
  std::set<std::string> names;
  for (size_t i = 0; params != nullptr && i < params->size(); ++i) {
    plugin.params.push_back(TRY(parse_param((*params)[i], fmt::format("{}, plugin {}", where, quote(plugin.name)))));
    if (!names.insert(plugin.params.back().name).second) {
      fields.fail(fmt::format("plugin {} has two parameters {}", quote(plugin.name), quote(plugin.params.back().name)),
                  kRename);
    }
  }
  TRY(fields.done());
  return plugin;
}

std::string note_place(std::string_view where) { return std::string(where) + " (note)"; }

// The ABI major that a note names under "abi". Empty if the text is no JSON object with such a number.
std::optional<int64_t> major_of_note(std::string_view text, std::string_view where) {
  const auto root = parse_json(text, where, {.error_kind = ErrorKind::kPlugin});
  const Json* const abi = root.ok() && root->is_object() ? json_find(*root, "abi") : nullptr;
  if (abi == nullptr || !abi->is_number_integer()) return std::nullopt;
  return abi->get<int64_t>();
}

Result<Json> parse_note_json(std::string_view text, const std::string& where) {
  auto parsed = parse_json(text, where, {.error_kind = ErrorKind::kPlugin});
  if (parsed.ok()) return parsed;
  // Notes are generated: correct the source, not the JSON.
  return Error{ErrorKind::kPlugin, "the metadata note is damaged: " + parsed.error().what, parsed.error().where,
               std::string(kNext)};
}

}  // namespace

Error other_abi(std::string_view abi, std::string_view where) {
  return {ErrorKind::kPlugin,
          fmt::format("built for plugin ABI {}, this program reads ABI {} and 0", abi, MORTISE_ABI_MAJOR),
          std::string(where), "build the pack again with this version's SDK"};
}

bool is_plugin_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name[0] >= 'a' && name[0] <= 'z' &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_lower_or_digit(c) || c == '_'; });
}

bool is_pack_id(std::string_view id) {
  const auto words = split(id, '.');
  return words.size() >= 2 && id.size() <= 256 && std::all_of(words.begin(), words.end(), [](std::string_view word) {
           return !word.empty() && word[0] >= 'a' && word[0] <= 'z' &&
                  std::all_of(word.begin(), word.end(),
                              [](char c) { return is_lower_or_digit(c) || c == '_' || c == '-'; });
         });
}

Result<std::string_view> find_note(const ElfSummary& elf, std::string_view where) {
  const auto refused = [&](std::string_view what) {
    return Error{ErrorKind::kPlugin, std::string(what), std::string(where), std::string(kNext)};
  };
  std::vector<std::string_view> notes;
  for (const ElfNote& note : elf.notes) {
    if (note.owner != kNoteOwner || note.type != kNoteType) continue;
    if (note.desc.size() > kMaxNoteBytes) return refused("the metadata note is longer than 1 MiB");
    // Padding zeros may be counted into the description.
    notes.push_back(note.desc.substr(0, note.desc.find('\0')));
  }
  if (notes.empty()) return refused("not a Mortise pack: no metadata note (.note.mortise)");
  if (notes.size() == 1) return notes.front();
  // A file may hold packs of several majors, with a note for each. The newest that this program reads counts.
  for (const int64_t abi : {int64_t{MORTISE_ABI_MAJOR}, int64_t{0}}) {
    const auto is_of = [&](std::string_view note) { return major_of_note(note, where) == abi; };
    const auto found = std::ranges::find_if(notes, is_of);
    if (found == notes.end()) continue;
    if (std::ranges::count_if(notes, is_of) > 1) return refused("two metadata notes in one pack");
    return *found;
  }
  return notes.front();
}

bool is_cuda_version(std::string_view text) {
  const auto is_number = [](std::string_view part) {
    return !part.empty() && part.size() <= 3 && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const size_t dot = text.find('.');
  return is_number(text.substr(0, dot)) && (dot == std::string_view::npos || is_number(text.substr(dot + 1)));
}

Result<std::string> cuda_of_note(std::string_view text, std::string_view where) {
  const std::string note_where = note_place(where);
  const Json root = TRY(parse_note_json(text, note_where));
  const Json* build = json_find(root, "build");
  if (build == nullptr) return std::string();
  Fields built(*build, note_where + ", build");
  std::string cuda = built.text("cuda", false);
  if (!cuda.empty() && !is_cuda_version(cuda))
    built.fail(fmt::format("'cuda' is {}, not a version such as 12.4", quote(cuda)));
  TRY(built.done());
  return cuda;
}

Result<PackInfo> parse_note(std::string_view text, std::string_view where) {
  const std::string note_where = note_place(where);
  const Json root = TRY(parse_note_json(text, note_where));
  Fields fields(root, note_where);
  PackInfo pack;
  pack.abi = static_cast<int32_t>(fields.integer("abi", 0, INT32_MAX));
  TRY(fields.done());
  // Another major may spell everything else differently, so nothing more is read.
  if (pack.abi != MORTISE_ABI_MAJOR && pack.abi != 0) return other_abi(std::to_string(pack.abi), where);
  pack.abi_minor = meant_minor(pack.abi, static_cast<int32_t>(fields.integer("abi_minor", 0, INT32_MAX)));
  const auto min_host = static_cast<int32_t>(fields.integer("min_host_minor", 0, INT32_MAX, false));
  pack.min_host_minor = meant_minor(pack.abi, min_host);
  pack.allowed_needs = fields.texts("needs");
  const Json* who = json_find(root, "pack");
  if (who == nullptr) fields.fail("'pack' is missing");
  TRY(fields.done());
  Fields identity(*who, note_where + ", pack");
  pack.id = identity.text("id");
  pack.version = identity.text("version");
  TRY(identity.done());
  if (const Json* build = json_find(root, "build"); build != nullptr) {
    Fields built(*build, note_where + ", build");
    pack.torch = built.text("torch", false);
    TRY(built.done());
    if (!pack.torch.empty()) pack.tier = kTorchLocked;
  }
  if (!is_pack_id(pack.id))
    fields.fail(fmt::format("pack id {} is not dotted lower-case words, as in acme.match", quote(pack.id)),
                "give another to mortise_add_pack()");
  if (!SemVer::parse(pack.version))
    fields.fail(fmt::format("version {} is not of the form 1.2.3", quote(pack.version)),
                "give another to mortise_add_pack()");
  const Json* plugins = fields.array("plugins", true);
  TRY(fields.done());
  std::set<std::pair<std::string, std::string>> names;
  for (const Json& object : *plugins) {
    pack.plugins.push_back(TRY(parse_plugin(object, note_where)));
    const PluginInfo& plugin = pack.plugins.back();
    if (!names.emplace(plugin.kind, plugin.name).second) {
      fields.fail(fmt::format("two plugins {} of kind {}", quote(plugin.name), plugin.kind), kRename);
    }
  }
  if (pack.plugins.empty()) fields.fail("no plugins");
  TRY(fields.done());
  return pack;
}

}  // namespace mortise
