// Copies the pack's table into a PackInfo, and names the first difference from the note.
#include "plugin/host/table.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "foundation/base/text.h"
#include "plugin/host/abi_struct.h"

namespace mortise {
namespace {

// Sizes that every struct has at least, of ABI 0.1 too.
constexpr size_t kMinPackSize = offsetof(mortise_pack, open);
constexpr size_t kMinDescriptorSize = offsetof(mortise_descriptor, vtable) + sizeof(void*);
constexpr size_t kMinParamSize = offsetof(mortise_param, choices) + sizeof(void*);
constexpr uint32_t kMaxCount = 4096;

// A text of a table that has no zero at its end is cut: it then differs from the note, and the pack is refused.
constexpr size_t kMaxText = 1 << 20;
std::string table_text(const char* text) { return {text, ::strnlen(text, kMaxText)}; }
std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : table_text(text); }

class TableReader {
 public:
  explicit TableReader(const PackInfo& info) : info_(info) {}

  [[nodiscard]] Error bad(std::string what) const {
    return {ErrorKind::kPlugin, "bad pack table: " + std::move(what), info_.path, "build the pack again with this SDK"};
  }

  // No struct of an ABI that this program knows is larger. A pack that claims so would have foreign memory read as fields.
  template <class Struct>
  [[nodiscard]] bool is_too_large(const Struct& in) const {
    return info_.abi_minor <= newest_minor(info_.abi) && in.struct_size > sizeof(Struct);
  }

  Result<std::vector<std::string>> names(const char* const* list, std::string_view what) const {
    std::vector<std::string> out;
    for (; list != nullptr && *list != nullptr; ++list) {
      if (out.size() == kMaxCount) return bad(std::string(what) + " has no null at its end");
      out.push_back(table_text(*list));
    }
    return out;
  }

  // Ends near the largest double are open ends, which JSON cannot spell.
  static std::optional<ParamRange> range(double min, double max) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kOpen = 1.7e308;
    const ParamRange out{min > -kOpen ? min : -kInfinity, max < kOpen ? max : kInfinity};
    return out == ParamRange{-kInfinity, kInfinity} ? std::nullopt : std::optional(out);
  }

  Result<ParamInfo> param(const mortise_param* ptr, const std::string& plugin) const {
    if (ptr == nullptr || ptr->struct_size < kMinParamSize)
      return bad(fmt::format("a parameter of {} is null or too small", plugin));
    if (is_too_large(*ptr)) return bad(fmt::format("a parameter of {} is too large", plugin));
    const mortise_param in = read_abi_struct(ptr);
    if (in.name == nullptr) return bad(fmt::format("a parameter of {} has no name", plugin));
    if (in.type < MORTISE_PARAM_F64 || in.type > MORTISE_PARAM_TEXT)
      return bad(fmt::format("parameter {} has an unknown type", quote(in.name)));
    ParamInfo out;
    out.name = table_text(in.name);
    out.type = static_cast<ParamType>(in.type);
    if (in.default_text != nullptr) out.default_text = table_text(in.default_text);
    out.doc = text_or_empty(in.doc);
    if (in.has_range != 0) out.range = range(in.min, in.max);
    if (in.num_choices > kMaxCount || (in.num_choices > 0 && in.choices == nullptr))
      return bad("choices of " + quote(in.name));
    for (uint32_t i = 0; i < in.num_choices; ++i) out.choices.push_back(text_or_empty(in.choices[i]));
    // A role of a later minor is plain here, as the note reads it.
    if (in.role > MORTISE_ROLE_PLAIN && in.role <= MORTISE_ROLE_SECRET) out.role = static_cast<ParamRole>(in.role);
    return out;
  }

  Result<PluginInfo> plugin(const mortise_descriptor* ptr) const {
    if (ptr == nullptr || ptr->struct_size < kMinDescriptorSize) return bad("a plugin descriptor is null or too small");
    if (is_too_large(*ptr)) return bad("a plugin descriptor is too large");
    const mortise_descriptor in = read_abi_struct(ptr);
    if (in.kind == nullptr || in.name == nullptr) return bad("a plugin without kind or name");
    if (in.vtable == nullptr) return bad(fmt::format("plugin {} has no vtable", quote(in.name)));
    if (in.coupling < MORTISE_COUPLING_TOKEN || in.coupling > MORTISE_COUPLING_UPDATE)
      return bad(fmt::format("plugin {} has an unknown coupling", quote(in.name)));
    PluginInfo out;
    out.kind = current_kind(table_text(in.kind));
    out.name = table_text(in.name);
    out.summary = text_or_empty(in.summary);
    out.doc = text_or_empty(in.doc);
    out.flags = in.flags;
    out.coupling = static_cast<Coupling>(in.coupling);
    out.requires_inputs = TRY(names(in.requires_inputs, "requires_inputs"));
    out.consumes = TRY(names(in.consumes, "consumes"));
    out.update_metrics = TRY(names(in.update_metrics, "update_metrics"));
    if (in.num_params > kMaxCount || (in.num_params > 0 && in.params == nullptr))
      return bad("parameters of " + quote(in.name));
    for (uint32_t i = 0; i < in.num_params; ++i) out.params.push_back(TRY(param(in.params[i], quote(in.name))));
    return out;
  }

 private:
  const PackInfo& info_;
};

// A source of ABI 0 that was compiled with the headers of ABI 1 has their minor in its table. A note that was written by
// hand still has the old one.
bool is_of_new_headers(const PackInfo& table, const PackInfo& note) {
  return table.abi == 0 && table.abi_minor == 0 && note.abi_minor >= 1 && note.abi_minor <= kLastMinorV0;
}

bool has_other_minors(const PackInfo& table, const PackInfo& note) {
  // What such a table says of the host is that of the new headers too: none of its own.
  const bool is_new = is_of_new_headers(table, note);
  if (!is_new && table.abi_minor != note.abi_minor) return true;
  return table.min_host_minor != note.min_host_minor && !(is_new && table.min_host_minor == 0);
}

std::string describe_difference(const PluginInfo& table, const PluginInfo& note) {
  const std::string plugin = fmt::format("plugin {}: ", quote(table.name));
  if (table.kind != note.kind || table.name != note.name)
    return fmt::format("plugin {} of the note is {}", quote(note.name), quote(table.name));
  if (table.summary != note.summary || table.doc != note.doc) return plugin + "summary or doc";
  if (table.flags != note.flags || table.coupling != note.coupling) return plugin + "flags or coupling";
  if (table.requires_inputs != note.requires_inputs || table.consumes != note.consumes)
    return plugin + "requires or consumes";
  if (table.update_metrics != note.update_metrics) return plugin + "update_metrics";
  if (table.params.size() != note.params.size()) return plugin + "number of parameters";
  for (size_t i = 0; i < table.params.size(); ++i) {
    if (!(table.params[i] == note.params[i])) return fmt::format("{}parameter {}", plugin, quote(table.params[i].name));
  }
  return "";
}

}  // namespace

Result<PackInfo> read_table(const mortise_pack& pack, const PackInfo& info) {
  const TableReader reader(info);
  if (pack.struct_size < kMinPackSize) return reader.bad("it is too small");
  if (reader.is_too_large(pack)) return reader.bad("it is too large");
  const mortise_pack in = read_abi_struct(&pack);
  if (in.id == nullptr || in.version == nullptr) return reader.bad("no id or version");
  if (in.abi_minor > INT32_MAX || in.min_host_minor > INT32_MAX) return reader.bad("ABI minors");
  if (in.num_plugins > kMaxCount || (in.num_plugins > 0 && in.plugins == nullptr)) return reader.bad("plugins");
  PackInfo out = info;
  out.id = table_text(in.id);
  out.version = table_text(in.version);
  out.abi_minor = meant_minor(info.abi, static_cast<int32_t>(in.abi_minor));
  out.min_host_minor = meant_minor(info.abi, static_cast<int32_t>(in.min_host_minor));
  out.plugins.clear();
  for (uint32_t i = 0; i < in.num_plugins; ++i) out.plugins.push_back(TRY(reader.plugin(in.plugins[i])));
  return out;
}

Result<> compare_with_note(const PackInfo& table, const PackInfo& note) {
  std::string difference;
  if (table.id != note.id)
    difference = fmt::format("pack id {} against {}", quote(table.id), quote(note.id));
  else if (table.version != note.version)
    difference = fmt::format("version {} against {}", quote(table.version), quote(note.version));
  else if (has_other_minors(table, note))
    difference = "ABI minors";
  else if (table.plugins.size() != note.plugins.size())
    difference = "number of plugins";
  for (size_t i = 0; difference.empty() && i < table.plugins.size(); ++i)
    difference = describe_difference(table.plugins[i], note.plugins[i]);
  if (difference.empty()) return {};
  return Error{ErrorKind::kPlugin, fmt::format("its table and its metadata note differ ({})", difference), note.path,
               "build the pack again with mortise_add_pack()"};
}

const mortise_descriptor* table_descriptor(const mortise_pack& pack, size_t i) { return pack.plugins[i]; }

}  // namespace mortise
