// bench_decode [WORKLOAD ...] [--device NAME] [--threads N] [--repeats N] [--bfloat16 | --rounded] [--serve]: generation
// alone at the benchmark shapes (random weights, end token forbidden), for several numbers of rows, and as a training
// step samples, which packs new weights first. --device sets model.device. The sampler has bfloat16 weights with
// --bfloat16 (rollout.dtype), the whole model with --rounded (model.dtype). --serve takes its requests from another process
// (decode_server.h), on the CPU. Prints one JSON object per line, with the minimum over the repeats. cpu_seconds is the
// process's own time on all threads, with waiting at barriers. With --threads 1 it is reliable on a busy machine too.
#include <ATen/Parallel.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench_device.h"
#include "decode_server.h"
#include "foundation/base/rng.h"
#include "generate/engine.h"
#include "workloads.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<GenerateRequest> make_requests(const Workload& w, int64_t rows, const SamplingParams& sampling) {
  const int64_t samples = std::min(rows, w.generations);
  std::vector<GenerateRequest> requests;
  for (int64_t p = 0; p < rows / samples; ++p) {
    GenerateRequest& request = requests.emplace_back();
    request.request_id = p;
    request.num_samples = samples;
    request.first_row_id = p * samples;
    request.seed = 1;
    request.sampling = sampling;
    RandomStream stream({7, RandomPurpose::kTest, 0, static_cast<uint64_t>(p), 0});
    for (int64_t i = 0; i < w.prompt_length; ++i) {
      request.prompt_ids.push_back(static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(w.shape.vocab_size))));
    }
  }
  return requests;
}

// Seconds for all completions. `new_weights`: makes the packed copies again, as after an update.
double run_once(GenerateEngine& engine, const std::vector<GenerateRequest>& requests, bool new_weights,
                int64_t& version) {
  const double start = seconds();
  if (new_weights && !engine.set_version(++version).ok()) std::abort();
  if (!engine.submit(requests).ok()) std::abort();
  const auto left = engine.poll([](const GeneratedSequence&) { return true; }, std::chrono::nanoseconds(-1));
  if (!left.ok() || *left != 0) std::abort();
  return seconds() - start;
}

void report(const Workload& w, GenerateEngine& engine, const char* what, int64_t rows, const SamplingParams& sampling,
            int repeats, bool new_weights) {
  auto requests = make_requests(w, rows, sampling);
  double best = 1e9;
  double best_cpu = 1e9;
  int64_t version = 0;
  for (int i = 0; i < repeats; ++i) {
    for (GenerateRequest& request : requests) request.step = i;
    const double cpu = cpu_seconds();
    best = std::min(best, run_once(engine, requests, new_weights, version));
    best_cpu = std::min(best_cpu, cpu_seconds() - cpu);
  }
  const auto tokens = static_cast<double>(rows * sampling.max_new_tokens);
  std::printf(
      "{\"workload\":\"%s\",\"what\":\"%s\",\"kernels\":\"%s\",\"rows\":%ld,\"seconds\":%.5f,"
      "\"cpu_seconds\":%.5f,\"tokens_per_s\":%.0f,\"ms_per_step\":%.4f}\n",
      w.name, what, std::string(engine.path_name()).c_str(), static_cast<long>(rows), best, best_cpu, tokens / best,
      1e3 * best / static_cast<double>(sampling.max_new_tokens));
  std::fflush(stdout);
}

void bench(const Workload& w, const ComputeDevice& device, int threads, int repeats, WeightFormat weights,
           const char* dtype) {
  auto config = make_qwen2_config(w.shape);
  if (!config.ok()) std::abort();
  auto model = Model::random(*std::move(config), 7, dtype);
  if (!model.ok() || !model->move_to(device).ok()) std::abort();
  EngineOptions options;
  options.num_threads = threads;
  options.weights = weights;
  auto engine = GenerateEngine::create(*model, options);
  if (!engine.ok()) std::abort();
  SamplingParams sampling;
  sampling.max_new_tokens = w.completion_length;
  sampling.ignore_eos = true;
  sampling.stop_ids = {w.shape.vocab_size - 1};
  report(w, **engine, "phase", w.prompts * w.generations, sampling, repeats, true);
  for (const int64_t rows : {1, 8, 32, 64}) report(w, **engine, "rows", rows, sampling, repeats, false);
  sampling.top_k = 20;
  sampling.top_p = 0.9;
  report(w, **engine, "top_k 20, top_p 0.9", w.prompts * w.generations, sampling, repeats, false);
}

}  // namespace

int main(int argc, char** argv) {
  ComputeDevice device;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--device") == 0) device = open_bench_device(argv[i + 1]);
  }
  int threads = at::get_num_threads();
  int repeats = 5;
  WeightFormat weights = WeightFormat::kFloat32;
  const char* dtype = "float32";
  bool serve = false;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
      threads = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc)
      repeats = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--bfloat16") == 0)
      weights = WeightFormat::kBfloat16;
    else if (std::strcmp(argv[i], "--rounded") == 0)
      dtype = "bfloat16";
    else if (std::strcmp(argv[i], "--device") == 0)
      ++i;  // opened above
    else if (std::strcmp(argv[i], "--serve") == 0)
      serve = true;
    else
      names.emplace_back(argv[i]);
  }
  if (serve && device.by_operators) {
    std::fprintf(stderr, "--serve measures the CPU: remove --device\n");
    return 2;
  }
  if (serve) return serve_decoding(threads);
  for (const Workload& w : kWorkloads) {
    if (names.empty() || std::ranges::find(names, w.name) != names.end())
      bench(w, device, threads, repeats, weights, dtype);
  }
  return 0;
}
