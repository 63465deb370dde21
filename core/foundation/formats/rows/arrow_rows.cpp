// Parquet and Arrow files through libmortise_arrow.so, which is loaded when the first such file is opened.
//
// The module lies in lib/mortise next to the program's bin. It is loaded with local symbols: libtorch and Arrow each
// carry copies of other libraries.
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "foundation/base/limits.h"
#include "foundation/base/this_program.h"
#include "foundation/formats/arrow/module_abi.h"
#include "foundation/formats/rows/text_rows.h"

namespace mortise {

namespace {

constexpr const char* kModuleFile = "libmortise_arrow.so";
#define MORTISE_TEXT_OF(name) #name
#define MORTISE_TEXT_OF_MACRO(name) MORTISE_TEXT_OF(name)

Path module_path() { return (this_program().parent_path() / "../lib/mortise" / kModuleFile).lexically_normal(); }

Result<const mortise_arrow_module*> load_arrow_module(const Path& data_file) {
  const Path path = module_path();
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) {
    return Error{ErrorKind::kData,
                 fmt::format("this is a Parquet or Arrow file, and this Mortise was built without {}", kModuleFile),
                 data_file.string(), "run './dev deps --arrow' and build again, or convert the file to JSONL"};
  }
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const reason = module == nullptr ? ::dlerror() : nullptr;
  const auto cannot = [&](std::string what) {
    return Error{ErrorKind::kData, std::move(what), path.string(), "run './dev deps --arrow' and build again"};
  };
  if (module == nullptr) return cannot(fmt::format("the module cannot be loaded: {}", reason == nullptr ? "" : reason));
  const auto* table =
      static_cast<const mortise_arrow_module*>(::dlsym(module, MORTISE_TEXT_OF_MACRO(MORTISE_ARROW_MODULE_SYMBOL)));
  if (table == nullptr || table->version != MORTISE_ARROW_MODULE_VERSION)
    return cannot("the module is of another version of Mortise");
  return table;
}

class ArrowRows : public RowReader {
 public:
  ArrowRows(Path path, const mortise_arrow_module* module) : RowReader(std::move(path), false), module_(module) {}
  ArrowRows(const ArrowRows&) = delete;
  ArrowRows& operator=(const ArrowRows&) = delete;
  ~ArrowRows() override {
    if (rows_ != nullptr) module_->close(rows_);
  }

  Result<> open(mortise_arrow_format format) {
    rows_ = module_->open(path().c_str(), format, error_.data(), error_.size());
    if (rows_ == nullptr) return cannot_read(path().string());
    return {};
  }

  Result<std::optional<RawRow>> next() override {
    if (next_ == num_given_) {
      next_ = 0;
      num_given_ = module_->next(rows_, &text_, &offsets_, error_.data(), error_.size());
      if (num_given_ < 0) {
        num_given_ = 0;
        return cannot_read(place(num_read_ + 1));
      }
      if (num_given_ == 0) return std::optional<RawRow>();
    }
    RawRow row;
    row.number = ++num_read_;
    const uint64_t begin = offsets_[next_], size = offsets_[next_ + 1] - begin;
    if (size > limits::kMaxJsonlLineBytes)
      row.fault = row_too_long(place(row.number));
    else
      row.text.assign(text_ + begin, size);
    ++next_;
    return std::optional<RawRow>(std::move(row));
  }

  Result<int64_t> skip(int64_t num_rows) override {
    const int64_t held = std::min(num_rows, num_given_ - next_);
    next_ += held;
    int64_t skipped = 0;
    if (held < num_rows) {
      skipped = module_->skip(rows_, num_rows - held, error_.data(), error_.size());
      if (skipped < 0) return cannot_read(place(num_read_ + held + 1));
    }
    num_read_ += held + skipped;
    return held + skipped;
  }

 private:
  [[nodiscard]] Error cannot_read(std::string where) const {
    return {ErrorKind::kData, fmt::format("the file cannot be read: {}", error_.data()), std::move(where),
            "check that the file is complete, or write it again"};
  }

  const mortise_arrow_module* module_;
  mortise_arrow_rows* rows_ = nullptr;
  const char* text_ = nullptr;
  const uint64_t* offsets_ = nullptr;
  int64_t num_given_ = 0;  // rows that text_ holds
  int64_t next_ = 0;       // the next one among them
  int64_t num_read_ = 0;
  std::array<char, 512> error_{};
};

}  // namespace

Result<std::unique_ptr<RowReader>> open_arrow_rows(const Path& path, bool is_parquet) {
  const mortise_arrow_module* module = TRY(load_arrow_module(path));
  auto rows = std::make_unique<ArrowRows>(path, module);
  TRY(rows->open(is_parquet ? MORTISE_ARROW_PARQUET : MORTISE_ARROW_IPC));
  return std::unique_ptr<RowReader>(std::move(rows));
}

}  // namespace mortise
