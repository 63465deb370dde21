// bench_tokenizer FOLDER DOCS.jsonl [--threads N] [--repeats N]: encodes the "text" of all rows, N times. Prints one
// JSON object per line: seconds, seconds of all processors, MB of UTF-8 per second, number of ids. It does not count
// loading and reading. The first repeat has cold word caches. peers/tokenizer_peer.py runs it in turns with the
// tokenizers wheel.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "foundation/formats/jsonl.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "bench_tokenizer: %s\n", text.c_str());
  std::exit(2);
}

std::vector<std::string> read_docs(const char* file) {
  std::vector<std::string> docs;
  auto reader = JsonlReader::open(default_env(), file);
  if (!reader.ok()) die(reader.error().to_string());
  while (true) {
    auto row = reader->next();
    if (!row.ok()) die(row.error().to_string());
    if (!row->has_value()) return docs;
    docs.push_back((**row).value.at("text").get<std::string>());
  }
}

uint64_t encode_all(const Tokenizer& tokenizer, const std::vector<std::string>& docs, int num_threads) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> num_ids{0};
  const auto work = [&] {
    for (size_t i = next++; i < docs.size(); i = next++) {
      const auto ids = tokenizer.encode(docs[i]);
      if (!ids.ok()) die(ids.error().to_string());
      num_ids += ids->size();
    }
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < num_threads; ++t) others.emplace_back(work);
  work();
  others.clear();
  return num_ids;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) die("usage: bench_tokenizer FOLDER DOCS.jsonl [--threads N] [--repeats N]");
  int threads = 1;
  int repeats = 3;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name != "--threads" && name != "--repeats") die("unknown option " + name);
    (name == "--threads" ? threads : repeats) = std::max(1, std::atoi(argv[i + 1]));
  }
  const auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) die(tokenizer.error().to_string());
  const std::vector<std::string> docs = read_docs(argv[2]);
  double bytes = 0;
  for (const std::string& doc : docs) bytes += static_cast<double>(doc.size());
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    const uint64_t ids = encode_all(*tokenizer, docs, threads);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    std::printf("{\"seconds\": %.4f, \"cpu_seconds\": %.4f, \"mb_per_s\": %.2f, \"ids\": %llu, \"threads\": %d}\n",
                seconds, cpu_seconds, bytes / 1e6 / seconds, static_cast<unsigned long long>(ids), threads);
    std::fflush(stdout);
  }
  return 0;
}
