/* What a plugin will read besides its inputs, told before an instance is made (mortise.reads/1). In the class:
 *     static constexpr std::uint32_t flags = MORTISE_FLAG_TELLS_READS;
 *     static const void* plugin_extension(const char* id) noexcept { return mortise::reads_extension<Match>(id); }
 *     void reads(mortise::Reads& out) const { out.files("path", "imports", "what they are", folder, {"a.txt"}); }
 * `reads` sees the parameters; setup() has not run. It looks at files alone. Header-only.
 */
#ifndef MORTISE_CPP_READS_HPP_
#define MORTISE_CPP_READS_HPP_

#include <cstring>

#include "plugin.hpp"

namespace mortise {

class Reads {
 public:
  explicit Reads(const mortise_reads_sink* sink) : sink_(sink) {}

  // Files below `folder` that the parameter leads to; `name` tells this set from the parameter's others.
  void files(std::string_view param, std::string_view name, std::string_view what, std::string_view folder,
             const std::vector<std::string>& files) {
    std::vector<mortise_text> paths;
    for (const std::string& file : files) paths.push_back(to_text(file));
    mortise_file_set set{};
    set.struct_size = sizeof set;
    set.param = to_text(param);
    set.name = to_text(name);
    set.what = to_text(what);
    set.folder = to_text(folder);
    set.num_files = paths.size();
    set.files = paths.data();
    sink_->files(sink_->context, &set);
  }

  // A data column without which no row can be scored. `who` needs it; `next` is what else would help.
  void column(std::string_view param, std::string_view name, std::string_view who, std::string_view next = "") {
    mortise_needed_column column{};
    column.struct_size = sizeof column;
    column.param = to_text(param);
    column.name = to_text(name);
    column.who = to_text(who);
    column.next = to_text(next);
    sink_->column(sink_->context, &column);
  }

 private:
  const mortise_reads_sink* sink_;
};

namespace detail {

template <class T>
std::int32_t tell_reads(const mortise_host* host, mortise_call* call, const mortise_reads_sink* sink) noexcept {
  return guarded(host, call, [&] {
    const Building b{nullptr, host, call};
    const BuildingScope scope(b);
    const T plugin;
    Reads out(sink);
    plugin.reads(out);
  });
}

}  // namespace detail

template <class T>
const void* reads_extension(const char* id) noexcept {
  static constexpr mortise_reads table = {sizeof(mortise_reads), 0, detail::tell_reads<T>};
  return std::strcmp(id, MORTISE_EXT_READS) == 0 ? &table : nullptr;
}

}  // namespace mortise

#endif  // MORTISE_CPP_READS_HPP_
