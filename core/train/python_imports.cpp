// See python_imports.h.
#include "train/python_imports.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "train/python_tokens.h"

namespace mortise {

namespace {

// A module by its parts, below a folder: `from ..a.b import c` is {a, b, c} two folders up, and {a, b}.
struct Module {
  size_t num_dots = 0;  // 0: from the first folder of sys.path
  std::vector<std::string_view> parts;
};

// The import statements of a file, one module after the other.
class ImportReader {
 public:
  explicit ImportReader(std::string_view source) : tokens_(python_tokens(source)) {}

  std::vector<Module> read() {
    bool begins = true;
    while (at_ < tokens_.size()) {
      const std::string_view token = tokens_[at_++];
      if (begins && token == "import") read_import();
      if (begins && token == "from") read_from();
      begins = token == "\n" || token == ";" || token == ":";
    }
    return std::move(modules_);
  }

 private:
  bool take(std::string_view token) {
    if (at_ >= tokens_.size() || tokens_[at_] != token) return false;
    ++at_;
    return true;
  }
  std::vector<std::string_view> read_name() {
    std::vector<std::string_view> parts;
    do {
      if (at_ >= tokens_.size() || !is_python_word(tokens_[at_].front())) break;
      parts.push_back(tokens_[at_++]);
    } while (take("."));
    return parts;
  }
  void skip_alias() {
    if (take("as")) read_name();
  }

  // a.b as c, d
  void read_import() {
    do {
      modules_.push_back({0, read_name()});
      skip_alias();
    } while (take(","));
  }
  // ..a.b import (c as d, e,)
  void read_from() {
    Module base;
    while (take(".")) ++base.num_dots;
    base.parts = read_name();
    if (!take("import")) return;
    modules_.push_back(base);
    take("(");
    do {
      Module inner = base;
      const std::vector<std::string_view> name = take("*") ? std::vector<std::string_view>{"*"} : read_name();
      inner.parts.insert(inner.parts.end(), name.begin(), name.end());
      modules_.push_back(std::move(inner));
      skip_alias();
    } while (take(","));
    take(")");
  }

  std::vector<std::string_view> tokens_;
  size_t at_ = 0;
  std::vector<Module> modules_;
};

class ImportWalk {
 public:
  ImportWalk(Env& env, Path folder) : env_(env), folder_(std::move(folder)) {}

  Result<std::set<std::string>> run(const std::string& file) {
    found_.insert(file);
    waiting_.push_back(file);
    while (!waiting_.empty()) {
      const Path next = waiting_.back();
      waiting_.pop_back();
      const std::string source = TRY(env_.read_file(folder_ / next));
      for (const Module& module : ImportReader(source).read()) TRY(follow(module, next.parent_path()));
    }
    found_.erase(file);
    return std::move(found_);
  }

 private:
  // A package is run before what it holds.
  Result<> follow(const Module& module, const Path& from) {
    Path at = module.num_dots == 0 ? Path() : from;
    for (size_t up = 1; up < module.num_dots; ++up) {
      if (at.empty()) return {};  // above the folder
      at = at.parent_path();
    }
    if (module.num_dots > 0) add(at / "__init__.py");
    for (const std::string_view part : module.parts) {
      if (part == "*") return add_all(at);
      at /= part;
      add(at.string() + ".py");
      add(at / "__init__.py");
    }
    return {};
  }
  // What a package's __all__ may name.
  Result<> add_all(const Path& package) {
    if (!is_file(package / "__init__.py")) return {};
    for (const std::string& name : TRY(env_.list_dir(folder_ / package))) {
      if (name.ends_with(".py")) add(package / name);
    }
    return {};
  }
  void add(const Path& file) {
    if (!is_file(file) || !found_.insert(file.string()).second) return;
    waiting_.push_back(file.string());
  }
  bool is_file(const Path& file) {
    const auto info = env_.info(folder_ / file);
    return info.ok() && info->is_file;
  }

  Env& env_;
  Path folder_;
  std::set<std::string> found_;
  std::vector<std::string> waiting_;
};

}  // namespace

Result<PythonImports> find_python_imports(Env& env, const Path& file) {
  std::error_code failed;
  Path real = std::filesystem::canonical(file, failed);
  if (failed) real = file;
  const std::set<std::string> files = TRY(ImportWalk(env, real.parent_path()).run(real.filename().string()));
  return PythonImports{real.parent_path(), {files.begin(), files.end()}};
}

}  // namespace mortise
