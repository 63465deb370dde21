// Runs a fuzz target over files, without the fuzzer: `fuzz_NAME FILE_OR_FOLDER...`. With it every build (GCC, ASan)
// replays the committed corpus, which keeps each input that once broke a reader. Exits with 1 if a path has no file.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/fuzz_support.h"

namespace {

int run_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::fprintf(stderr, "%s (%zu bytes)\n", path.c_str(), bytes.size());
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  // Cut short at a few places: the commonest damage to a file.
  for (size_t part = 1; part < 8; ++part) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size() * part / 8);
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int num_files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      num_files += run_file(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) num_files += run_file(entry.path());
  }
  std::fprintf(stderr, "%d files\n", num_files);
  return num_files > 0 ? 0 : 1;
}
