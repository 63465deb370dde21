// See python_imports.h.
#include "python_imports.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <mortise/cpp/plugin.hpp>

#include "python_tokens.h"

namespace mortise {

namespace {

namespace fs = std::filesystem;

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
  explicit ImportWalk(fs::path folder) : folder_(std::move(folder)) {}

  std::set<std::string> run(const std::string& file) {
    found_.insert(file);
    waiting_.push_back(file);
    while (!waiting_.empty()) {
      const fs::path next = waiting_.back();
      waiting_.pop_back();
      const std::string source = read_python_file(folder_ / next);
      for (const Module& module : ImportReader(source).read()) follow(module, next.parent_path());
    }
    found_.erase(file);
    return std::move(found_);
  }

 private:
  // A package is run before what it holds.
  void follow(const Module& module, const fs::path& from) {
    fs::path at = module.num_dots == 0 ? fs::path() : from;
    for (std::size_t up = 1; up < module.num_dots; ++up) {
      if (at.empty()) return;  // above the folder
      at = at.parent_path();
    }
    if (module.num_dots > 0) add(at / "__init__.py");
    for (const std::string_view part : module.parts) {
      if (part == "*") return add_all(at);
      at /= part;
      add(at.string() + ".py");
      add(at / "__init__.py");
    }
  }
  // The names in a package's __all__.
  void add_all(const fs::path& package) {
    if (!is_file(package / "__init__.py")) return;
    std::error_code failed;
    for (fs::directory_iterator it(folder_ / package, failed); !failed && it != fs::directory_iterator();
         it.increment(failed)) {
      if (it->path().extension() == ".py") add(package / it->path().filename());
    }
    if (failed) fail(MORTISE_PERMISSION_DENIED, (folder_ / package).string() + ": " + failed.message());
  }
  void add(const fs::path& file) {
    if (!is_file(file) || !found_.insert(file.string()).second) return;
    waiting_.push_back(file.string());
  }
  bool is_file(const fs::path& file) const {
    std::error_code failed;
    return fs::is_regular_file(folder_ / file, failed);
  }

  fs::path folder_;
  std::set<std::string> found_;
  std::vector<std::string> waiting_;
};

}  // namespace

std::string read_python_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string source{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) fail(MORTISE_PERMISSION_DENIED, file.string() + ": the file cannot be read");
  return source;
}

PythonImports find_python_imports(const fs::path& file) {
  std::error_code failed;
  fs::path real = fs::canonical(file, failed);
  if (failed) real = file;
  const std::set<std::string> files = ImportWalk(real.parent_path()).run(real.filename().string());
  return PythonImports{real.parent_path(), {files.begin(), files.end()}};
}

}  // namespace mortise
