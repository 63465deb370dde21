// bench_train --model DIR --rows F.jsonl [--tokens N] [--repeats N]: training passes over rows of any lengths, packed.
//
// A line of F is {"ids": [...]}. The first id is the prompt, the others have a loss. A repeat runs all rows once, in
// micro-batches of at most N tokens (2,048): forward, head and backward, mean negative log-likelihood, no optimizer.
// Prints one JSON object: the seconds of the fastest repeat, tokens, loss and gradient norm. peers/train_peer.py runs
// it in turns with transformers. Threads: OMP_NUM_THREADS, else 2.
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/formats/jsonl.h"
#include "learn/optim/adamw.h"
#include "learn/update/packed_forward.h"
#include "model/head/log_prob_head.h"
#include "model/model.h"

namespace {

using namespace mortise;  // NOLINT: a program of one file

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Rows {
  std::vector<std::vector<int64_t>> ids;
  StepTable batch;
};

Result<Rows> read_rows(const std::string& path) {
  Rows rows;
  JsonlReader reader = TRY(JsonlReader::open(default_env(), path));
  while (auto row = TRY(reader.next())) rows.ids.push_back(row->value["ids"].get<std::vector<int64_t>>());
  std::vector<TableRow> table;
  for (const std::vector<int64_t>& ids : rows.ids)
    table.push_back({std::span(ids).first(1), std::span(ids).subspan(1), static_cast<int64_t>(table.size())});
  rows.batch = StepTable(std::move(table));
  return rows;
}

struct Pass {
  double seconds = 1e9, loss = 0.0;
};

Result<Pass> run(Model& model, const Rows& rows, const MicroBatchOptions& cut) {
  std::vector<int64_t> order(rows.ids.size());
  std::iota(order.begin(), order.end(), 0);
  const double weight = 1.0 / static_cast<double>(rows.batch.num_tokens());
  Pass pass;
  model.zero_grad();
  const double start = seconds();
  for (const std::vector<int64_t>& micro : plan_micro_batches(rows.batch, order, cut)) {
    const PackedForward forward = TRY(forward_rows(model, rows.batch, micro));
    const at::Tensor d_hidden = at::empty_like(forward.hidden_RH);
    const auto loss = [&](const HeadChunk& chunk) {
      for (const double log_prob : chunk.log_prob) pass.loss -= weight * log_prob;
      std::fill(chunk.grad_log_prob.begin(), chunk.grad_log_prob.end(), -weight);
    };
    head_one_pass(forward.hidden_RH, model.head(), forward.targets_R, 1.0, EntropyUse::kNone, loss, d_hidden,
                  model.head_grad());
    forward.selected_RH.backward(d_hidden);
  }
  pass.seconds = seconds() - start;
  return pass;
}

Result<> bench(const std::string& folder, const std::string& file, int64_t tokens, int repeats) {
  Model model = TRY(Model::load(default_env(), folder));
  const Rows rows = TRY(read_rows(file));
  MicroBatchOptions cut;
  cut.token_budget = tokens;
  Pass best;
  for (int i = 0; i < repeats; ++i) {
    const Pass pass = TRY(run(model, rows, cut));
    best = {std::min(best.seconds, pass.seconds), pass.loss};
  }
  std::vector<OptimizedParameter> parameters;
  for (const NamedParameter& p : model.parameters()) parameters.push_back({p.name, p.tensor, true});
  const auto real = rows.batch.num_tokens() + rows.batch.num_rows();
  std::printf("{\"seconds\":%.4f,\"tokens\":%ld,\"threads\":%d,\"loss\":%.9g,\"grad_norm\":%.9g}\n", best.seconds,
              static_cast<long>(real), at::get_num_threads(), best.loss, global_grad_norm(parameters));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(2);
  std::string model, rows;
  int64_t tokens = 2048;
  int repeats = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--model") model = argv[i + 1];
    if (name == "--rows") rows = argv[i + 1];
    if (name == "--tokens") tokens = std::atoll(argv[i + 1]);
    if (name == "--repeats") repeats = std::max(1, std::atoi(argv[i + 1]));
  }
  if (model.empty() || rows.empty() || tokens < 1) {
    std::fprintf(stderr, "usage: bench_train --model DIR --rows F.jsonl [--tokens N] [--repeats N]\n");
    return 2;
  }
  const auto done = bench(model, rows, tokens, repeats);
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return 1;
}
