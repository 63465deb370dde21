// bench_passes [c1|c1v|c2|all] [repeats] [unshared] [bfloat16] [device=NAME] [cudnn]: forward and backward of one packed batch
// (prompt shared), head in one pass, by phase; no optimizer. Prints one JSON object per workload: minima over the
// repeats, wall time by phase and processor time in all (the figure to trust on a busy machine, with
// OMP_NUM_THREADS=1). roofline_share: the time that the products of layers and head would take at the peak that this
// machine reaches in each format, as a share of the processor time. With bfloat16 it runs a float32 and a bfloat16
// model in turns, and says how many times as fast the second one is and which instructions for bfloat16 the CPU has.
// device=NAME: as model.device; it ends with code 13 if there is no such device. cudnn: attention by cuDNN. Threads:
// OMP_NUM_THREADS, else 2.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "bench_device.h"
#include "foundation/base/rng.h"
#include "model/head/log_prob_head.h"
#include "model/layers/attention_choice.h"
#include "model/model.h"
#include "model/tensor/peak_flops.h"
#include "workloads.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

std::vector<int64_t> random_ids(int64_t n, int64_t vocab, uint64_t seed) {
  RandomStream stream({seed, RandomPurpose::kTest, 0, 0, 0});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(vocab))));
  return ids;
}

PackedBatch make_batch(const Workload& w, bool share) {
  std::vector<std::vector<int64_t>> ids;
  std::vector<PackRow> rows;
  ids.reserve(static_cast<size_t>(w.prompts * (w.generations + 1)));
  for (int64_t p = 0; p < w.prompts; ++p) {
    const auto& prompt = ids.emplace_back(random_ids(w.prompt_length, w.shape.vocab_size, static_cast<uint64_t>(p)));
    for (int64_t g = 0; g < w.generations; ++g) {
      const auto& response = ids.emplace_back(
          random_ids(w.completion_length, w.shape.vocab_size, static_cast<uint64_t>(1000 + p * w.generations + g)));
      rows.push_back({prompt, response, p});
    }
  }
  return *pack_rows(rows, {.share_prefix = share, .vocab_size = w.shape.vocab_size});
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Times {
  double forward = 1e9, head = 1e9, backward = 1e9, total = 1e9;
  double cpu_forward = 1e9, cpu_head = 1e9, cpu_backward = 1e9;
};

// A GPU computes behind the host, in order: it has done all of it when a number is here.
void wait_for_device(const Model& model) {
  const at::Tensor& any = model.parameters().front().tensor;
  if (!any.is_cpu()) on_host(any.detach().flatten().narrow(0, 0, 1));
}

void step(Model& model, const PackedBatch& batch, Times& best) {
  model.zero_grad();
  wait_for_device(model);
  const double start = seconds();
  const double cpu_start = cpu_seconds();
  const at::Tensor hidden = model.forward_hidden(batch);
  const at::Tensor rows = hidden.index_select(0, batch.predict_index_R.to(hidden.device()));
  wait_for_device(model);
  const double forward = seconds();
  const double cpu_forward = cpu_seconds();
  const at::Tensor d_rows = at::empty_like(rows);
  const auto loss = [](const HeadChunk& chunk) {
    for (size_t i = 0; i < chunk.grad_log_prob.size(); ++i) chunk.grad_log_prob[i] = (i % 2 == 0 ? 1e-3 : -1e-3);
  };
  head_one_pass(rows.detach(), model.head(), batch.targets_R, 1.0, EntropyUse::kValue, loss, d_rows, model.head_grad());
  wait_for_device(model);
  const double head = seconds();
  const double cpu_head = cpu_seconds();
  rows.backward(d_rows);
  wait_for_device(model);
  const double end = seconds();
  best.cpu_backward = std::min(best.cpu_backward, cpu_seconds() - cpu_head);
  best.cpu_forward = std::min(best.cpu_forward, cpu_forward - cpu_start);
  best.cpu_head = std::min(best.cpu_head, cpu_head - cpu_forward);
  best.forward = std::min(best.forward, forward - start);
  best.head = std::min(best.head, head - forward);
  best.backward = std::min(best.backward, end - head);
  best.total = std::min(best.total, end - start);
}

double cpu_seconds_of(const Times& times) { return times.cpu_forward + times.cpu_head + times.cpu_backward; }

// The least seconds of the products of the layers and of the head, forward and backward. Attention is not counted.
double product_floor(const Model& model, const PackedBatch& batch) {
  const ModelConfig& c = model.config();
  const int64_t layer = c.hidden_size * (c.qkv_size() + c.q_size() + 3 * c.intermediate_size);
  const auto of_layers = static_cast<double>(6 * c.num_layers * layer * batch.num_tokens());
  const auto of_head = static_cast<double>(6 * c.hidden_size * c.vocab_size * batch.targets_R.numel());
  return of_layers / measured_peak_flops(model.has_rounded_matrices() ? at::kBFloat16 : at::kFloat) +
         of_head / measured_peak_flops(at::kFloat);
}

void print(const Workload& w, const Model& model, const PackedBatch& batch, const Times& best,
           const std::string& more) {
  std::printf(
      "{\"workload\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,\"tokens\":%ld,\"forward_s\":%.4f,\"head_s\":%.4f,"
      "\"backward_s\":%.4f,\"total_s\":%.4f,",
      w.name, model.has_rounded_matrices() ? "bfloat16" : "float32", at::get_num_threads(),
      static_cast<long>(batch.num_tokens()), best.forward, best.head, best.backward, best.total);
  const double share = product_floor(model, batch) * at::get_num_threads() / cpu_seconds_of(best);
  std::printf("\"cpu_forward_s\":%.4f,\"cpu_head_s\":%.4f,\"cpu_backward_s\":%.4f,\"roofline_share\":%.3f%s}\n",
              best.cpu_forward, best.cpu_head, best.cpu_backward, share, more.c_str());
}

// The instructions of this CPU that multiply bfloat16 numbers, by the names of /proc/cpuinfo.
std::string bfloat16_instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, found;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  line += " ";
  for (const char* name : {"avx512_bf16", "amx_bf16"}) {
    if (line.find(" " + std::string(name) + " ") != std::string::npos)
      found += (found.empty() ? "" : " ") + std::string(name);
  }
  return found.empty() ? "none" : found;
}

Model model_on(const ComputeDevice& device, const Workload& w, const char* dtype) {
  Model model = *Model::random(*make_qwen2_config(w.shape), 1, dtype);
  const Result<> moved = model.move_to(device);
  if (moved.ok()) return model;
  std::fprintf(stderr, "%s\n", moved.error().to_string().c_str());
  std::exit(1);
}

// That of a word "device=NAME"; the CPU without one. The first use of libtorch.
ComputeDevice wanted_device(int argc, char** argv) {
  constexpr std::string_view kWord = "device=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kWord)) continue;
    return open_bench_device(word.substr(kWord.size()));
  }
  return {};
}

void take_cudnn() {
  const Result<CudnnAttention*> opened = open_cudnn_attention();
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.error().to_string().c_str());
    std::exit(1);
  }
  static const AttentionChoices choices = AttentionChoices::everywhere(**opened);
  use_attention_choices(&choices);
}

int main_of(int argc, char** argv) {
  const ComputeDevice device = wanted_device(argc, argv);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(2);
  std::string which = "all";
  int repeats = 5;
  bool shares = true, has_bfloat16 = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "unshared") {
      shares = false;
    } else if (word == "bfloat16") {
      has_bfloat16 = true;
    } else if (word.starts_with("device=")) {
      continue;
    } else if (word == "cudnn") {
      take_cudnn();
    } else if (std::atoi(argv[i]) > 0) {
      repeats = std::atoi(argv[i]);
    } else {
      which = word;
    }
  }
  for (const Workload& w : kWorkloads) {
    if (which != "all" && which != w.name) continue;
    Model model = model_on(device, w, "float32");
    Model rounded = model_on(device, w, has_bfloat16 ? "bfloat16" : "float32");
    const PackedBatch batch = make_batch(w, shares);
    Times best, best_rounded;
    for (int i = 0; i < repeats + 1; ++i) {
      step(model, batch, best);
      if (has_bfloat16) step(rounded, batch, best_rounded);
    }
    print(w, model, batch, best, "");
    if (!has_bfloat16) continue;
    char ratios[160];
    std::snprintf(ratios, sizeof(ratios), ",\"speedup\":%.3f,\"cpu_speedup\":%.3f,\"bfloat16_instructions\":\"%s\"",
                  best.total / best_rounded.total, cpu_seconds_of(best) / cpu_seconds_of(best_rounded),
                  bfloat16_instructions().c_str());
    print(w, rounded, batch, best_rounded, ratios);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return main_of(argc, argv); }
