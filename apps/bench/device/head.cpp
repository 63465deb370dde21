// The fused head: its time and memory, and its numbers for inputs from files.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "device/parts.h"
#include "model/head/log_prob_head.h"
#include "model/tensor/packing.h"

namespace mortise {
namespace {

struct HeadInputs {
  at::Tensor hidden, targets;
  VocabularyHead head;
  at::Tensor d_hidden, d_weight;
};

HeadInputs inputs_of(const BenchDevice& bench, const at::Tensor& hidden, const at::Tensor& weight, at::Tensor targets) {
  VocabularyHead head(weight);
  head.by_operators = bench.device().by_operators;
  return {hidden, std::move(targets), std::move(head), at::empty_like(hidden), at::zeros_like(weight)};
}

// Hidden states as the last norm of the model writes them.
Result<at::Tensor> hidden_of(const BenchDevice& bench, const Model& model, int64_t tokens) {
  const std::vector<int64_t> ids = {0, 1};
  const PackRow row{std::span(ids).first(1), std::span(ids).subspan(1), -1};
  const PackedBatch batch = TRY(pack_rows({&row, 1}, {.vocab_size = model.config().vocab_size}));
  const at::NoGradGuard no_grad;
  const at::ScalarType type = model.forward_hidden(batch).scalar_type();
  return at::rand({tokens, model.config().hidden_size}, bench.floats()).sub_(0.5).to(type);
}

void one_pass(const HeadInputs& in) {
  const auto loss = [](const HeadChunk& chunk) { std::ranges::fill(chunk.grad_log_prob, 1.0); };
  head_one_pass(in.hidden, in.head, in.targets, 1.0, EntropyUse::kNone, loss, in.d_hidden, in.d_weight);
}

void two_passes(const HeadInputs& in) {
  const LogProbs first = head_log_prob(in.hidden, in.head, in.targets, 1.0, false);
  const at::Tensor ones = at::full({in.hidden.size(0)}, 1.0, at::kDouble);  // the loss is on the host
  head_backward(in.hidden, in.head, in.targets, 1.0, ones, {}, in.d_hidden, in.d_weight, first.norms_R);
}

Result<at::Tensor> read_tensor(const Path& path, at::IntArrayRef shape, at::ScalarType dtype) {
  const std::string bytes = TRY(default_env().read_file(path));
  at::Tensor out = at::empty(shape, dtype);
  if (bytes.size() != out.nbytes()) {
    return Error{ErrorKind::kData, "the file has another size than the request says", path.string(),
                 "write it again with the same sizes"};
  }
  std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

Result<Json> bench_head(const BenchDevice& bench, const Json& request) {
  Model model = TRY(load_model(bench, request));
  const auto tokens = request.at("tokens").get<int64_t>(), repeats = request.at("repeats").get<int64_t>();
  const at::Tensor hidden = TRY(hidden_of(bench, model, tokens));
  const at::Tensor targets = at::randint(model.config().vocab_size, {tokens}, at::kLong);
  const HeadInputs in = {hidden, targets, model.head(), at::empty_like(hidden), model.head_grad()};
  const auto measured = [&](const std::function<void()>& work) {
    Json out = {{"seconds", bench.times(repeats, work)}};
    out["extra_bytes"] = bench.extra_bytes(work);
    return out;
  };
  const at::ScalarType of_products = in.head.rounds ? at::kBFloat16 : in.head.weight_VH.scalar_type();
  return Json{{"weight_dtype", c10::toString(of_products)},
              {"forward", measured([&] { head_log_prob(in.hidden, in.head, in.targets, 1.0, false); })},
              {"one_pass", measured([&] { one_pass(in); })},
              {"two_passes", measured([&] { two_passes(in); })}};
}

Result<Json> bench_head_check(const BenchDevice& bench, const Json& request) {
  const auto tokens = request.at("tokens").get<int64_t>(), width = request.at("hidden").get<int64_t>();
  const auto vocab = request.at("vocab").get<int64_t>();
  const Path folder = request.at("folder").get<std::string>();
  const at::Tensor hidden = TRY(read_tensor(folder / "hidden.f32", {tokens, width}, at::kFloat));
  const at::Tensor weight = TRY(read_tensor(folder / "weight.f32", {vocab, width}, at::kFloat));
  const at::Tensor targets = TRY(read_tensor(folder / "targets.i64", {tokens}, at::kLong));
  const at::Device device = bench.device().device;
  const HeadInputs in = inputs_of(bench, hidden.to(device), weight.to(device), targets);
  const at::Tensor log_prob = on_host(head_log_prob(in.hidden, in.head, in.targets, 1.0, false).log_prob_R);
  one_pass(in);
  const float* data = log_prob.const_data_ptr<float>();
  return Json{{"log_probs", std::vector<float>(data, data + tokens)},
              {"hidden_norm", on_host(in.d_hidden).to(at::kDouble).norm().item<double>()},
              {"weight_norm", on_host(in.d_weight).to(at::kDouble).norm().item<double>()}};
}

}  // namespace mortise
