// `mortise plugin new KIND ID --lang L`: a project of the SDK's templates, and what to type next.
#include "plugin_new.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <iostream>
#include <map>

#include "command_line.h"
#include "foundation/base/env.h"
#include "foundation/base/suggest.h"
#include "foundation/base/text.h"
#include "plugin/host/kinds/kinds.h"
#include "plugin/host/registry.h"
#include "plugin/host/search.h"
#include "plugin/pack/note.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr const char* kNewUsage = R"(usage: mortise plugin new KIND ID [--lang c|cpp|torch|cuda|rust] [--out DIR]

Makes a folder with a working plugin, its test, and its build. ID is the id of the pack, which begins with a name of
yours. The plugin gets its last word as its name (acme.match), or the word after a slash (acme.rewards/match).

  c      C11; builds with CMake, or with make and pkg-config (every kind)
  cpp    C++17, the default (every kind)
  torch  C++ with libtorch; bound to the exact libtorch of the program (rewards and policy losses)
  cuda   CUDA C++: a kernel, and the same formula on the CPU; needs nvcc (policy losses)
  rust   a crate without dependencies (every kind)
)";

constexpr std::array<std::string_view, 5> kLanguages = {"c", "cpp", "torch", "cuda", "rust"};

Error new_usage_error(std::string what) {
  return {ErrorKind::kConfig, std::move(what), "mortise plugin new", "`mortise plugin new --help` shows the usage"};
}

std::string class_name(std::string_view name) {
  std::string out;
  bool upper = true;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    out += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    upper = false;
  }
  return out;
}

// In Rust these are words of the language, or types that every file uses.
std::string rust_class_name(const NewPlugin& plan) {
  constexpr std::array<std::string_view, 3> kTaken = {"Option", "Self", "String"};
  std::string name = class_name(plan.name);
  if (std::find(kTaken.begin(), kTaken.end(), name) != kTaken.end()) name += class_name(plan.kind);
  return name;
}

using Words = std::map<std::string, std::string, std::less<>>;

Words words_of_plan(const NewPlugin& plan) {
  std::string crate = plan.pack;  // whole: a plugin's own name may be a keyword or a crate of the library
  std::replace_if(
      crate.begin(), crate.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  const std::string class_word = plan.lang == "rust" ? rust_class_name(plan) : class_name(plan.name);
  return {{"@ID@", plan.pack},     {"@NAME@", plan.name}, {"@CRATE@", crate},
          {"@CLASS@", class_word}, {"@KIND@", plan.kind}, {"@SDK@", plan.share.string()}};
}

std::string replace_words(std::string_view text, const Words& words) {
  std::string out;
  while (!text.empty()) {
    const auto word =
        std::find_if(words.begin(), words.end(), [&](const auto& w) { return text.starts_with(w.first); });
    if (word != words.end()) {
      out += word->second;
      text.remove_prefix(word->first.size());
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

// The kinds that a language has templates of, sorted.
std::vector<std::string> template_kinds(const fs::path& root) {
  std::vector<std::string> kinds;
  std::error_code failed;
  for (fs::directory_iterator it(root, failed); !failed && it != fs::directory_iterator(); it.increment(failed)) {
    if (it->path().filename() != "common") kinds.push_back(it->path().filename().string());
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

Error disk_fault(const std::string& what, const fs::path& path, const std::error_code& code) {
  return {ErrorKind::kDisk, fmt::format("{}: {}", what, code.message()), path.string(), ""};
}

// The template files below `root`, relative to it, sorted.
Result<std::vector<fs::path>> template_files(const fs::path& root) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(root, failed); !failed && it != fs::recursive_directory_iterator();
       it.increment(failed)) {
    if (it->path().extension() == ".in") files.push_back(fs::relative(it->path(), root, failed));
  }
  if (failed) return disk_fault("cannot be listed", root, failed);
  std::sort(files.begin(), files.end());
  return files;
}

Result<> check_folder_is_free(const fs::path& dir) {
  std::error_code failed;
  if (!fs::exists(dir, failed)) return {};
  const bool empty = fs::is_directory(dir, failed) && fs::is_empty(dir, failed);
  if (empty && !failed) return {};
  return Error{ErrorKind::kConfig, "the path exists and is not an empty folder", dir.string(),
               "choose another folder with --out DIR"};
}

void print_next_steps(const NewPlugin& plan, const std::vector<std::string>& files) {
  std::cout << "wrote " << plan.dir.string() << "/: " << join(files, ", ") << "\n\nnext:\n  cd " << plan.dir.string()
            << "\n";
  if (plan.lang == "rust") {
    std::cout << "  ./build.sh && cargo test --offline\n";
  } else {
    // <prefix>/share/mortise: where the SDK is installed, next to its package.
    const fs::path prefix = plan.share.parent_path().parent_path();
    std::error_code ignored;
    const bool installed =
        fs::exists(prefix / "bin/mortise_note", ignored) && !fs::exists(prefix / "CMakeCache.txt", ignored);
    const std::string where = installed ? " -DCMAKE_PREFIX_PATH=" + prefix.string() : "";
    if (plan.lang == "torch") {
      std::cout << "    (where MORTISE_TORCH_DIR is the folder `torch` of the libtorch that mortise itself uses: `ldd "
                   "$(command -v "
                   "mortise)` names its lib/libtorch_cpu.so)\n";
    }
    std::cout << "  cmake -B build" << where
              << (plan.lang == "torch" ? " -DMORTISE_TORCH_DIR=\"$MORTISE_TORCH_DIR\"" : "")
              << " && cmake --build build && ctest --test-dir build\n";
    if (!installed)
      std::cout << "    (the SDK must be installed: cmake --install BUILD --prefix DIR --component sdk, and DIR given "
                   "as -DCMAKE_PREFIX_PATH=DIR)\n";
  }
  std::cout << "  mortise plugin check build/lib/mortise/packs/" << plan.pack << ".so\n";
  const KindInfo* const kind = find_kind_named(plan.kind);
  std::cout << "\nin a run's config:\n  [plugins]\n  paths = [\"" << fs::absolute(plan.dir).lexically_normal().string()
            << "/build/lib/mortise/packs\"]\n  " << (kind == nullptr ? "name" : kind->example) << " = \"" << plan.pack
            << "/" << plan.name << "\"\n";
}

}  // namespace

fs::path default_share_dir() {
  const fs::path packs = default_builtin_dir();  // <prefix>/lib/mortise/packs
  return packs.empty() ? fs::path() : packs.parent_path().parent_path().parent_path() / "share" / "mortise";
}

Result<NewPlugin> plan_new_plugin(const std::string& kind, std::string_view id, const std::string& lang) {
  NewPlugin plan;
  plan.kind = short_kind(kind);
  plan.lang = lang;
  const size_t slash = id.find('/');
  plan.pack = std::string(id.substr(0, slash));
  if (!is_pack_id(plan.pack))
    return new_usage_error(
        fmt::format("the pack id {} is not dotted lower-case words, as in acme.match", quote(plan.pack)));
  if (plan.pack.starts_with("mortise."))
    return new_usage_error("ids that begin with 'mortise.' are kept for the packs of the installation");
  plan.name =
      slash == std::string_view::npos ? plan.pack.substr(plan.pack.rfind('.') + 1) : std::string(id.substr(slash + 1));
  if (slash == std::string_view::npos) std::replace(plan.name.begin(), plan.name.end(), '-', '_');
  if (!is_plugin_name(plan.name))
    return new_usage_error(fmt::format("the plugin name {} is not [a-z][a-z0-9_]*", quote(plan.name)));
  plan.dir = plan.pack;
  plan.share = default_share_dir();

  const std::vector<std::string> languages(kLanguages.begin(), kLanguages.end());
  if (std::find(languages.begin(), languages.end(), lang) == languages.end())
    return new_usage_error(fmt::format("there is no language {}; {}", quote(lang), use_one_of(languages)));
  return plan;
}

Result<std::vector<std::string>> write_new_plugin(const NewPlugin& plan) {
  const fs::path root = plan.share / "templates" / plan.lang;
  std::error_code ignored;
  if (!fs::is_directory(root / "common", ignored)) {
    return Error{ErrorKind::kConfig, "the templates of the SDK are missing", root.string(),
                 "install the SDK where the program is: cmake --install BUILD --prefix DIR --component sdk"};
  }
  if (!fs::is_directory(root / plan.kind, ignored)) {
    return new_usage_error(fmt::format("there is no template of the kind {} in {}: only of {}", plan.kind, plan.lang,
                                       join(template_kinds(root), ", ")));
  }
  TRY(check_folder_is_free(plan.dir));
  const Words words = words_of_plan(plan);
  std::vector<std::string> written;
  for (const fs::path& part : {root / "common", root / plan.kind}) {
    const std::vector<fs::path> files = TRY(template_files(part));
    for (const fs::path& file : files) {
      const std::string text = TRY(default_env().read_file(part / file));
      const std::string name = replace_words((file.parent_path() / file.stem()).string(), words);
      const fs::path target = plan.dir / name;
      TRY(default_env().create_dirs(target.parent_path()));
      TRY(write_file(default_env(), target, replace_words(text, words)));
      if (text.starts_with("#!")) fs::permissions(target, fs::perms::owner_exec, fs::perm_options::add, ignored);
      written.push_back(name);
    }
  }
  return written;
}

Result<> run_plugin_new(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("lang", po::value<std::string>()->default_value("cpp"), "c, cpp, torch, cuda or rust")(
      "out", po::value<std::string>(), "the folder to make; default: one named as the pack, here")("help,h",
                                                                                                   "this text");
  const po::variables_map given = TRY(parse_words(args, options, "mortise plugin new"));
  if (given.count("help") != 0) {
    std::cout << kNewUsage << "\nKIND is " << kind_list() << ".\n\n" << options;
    return {};
  }
  const auto words = words_of(given);
  if (words.size() != 2) return new_usage_error("new takes a kind and an id");
  NewPlugin plan = TRY(plan_new_plugin(words[0], words[1], given["lang"].as<std::string>()));
  if (given.count("out") != 0) plan.dir = given["out"].as<std::string>();
  const std::vector<std::string> files = TRY(write_new_plugin(plan));
  print_next_steps(plan, files);
  return {};
}

}  // namespace mortise
