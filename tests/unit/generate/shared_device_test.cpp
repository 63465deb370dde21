// Ranks that sample together by the code of a device: the tokens of one rank on the CPU, by libtorch's operators and by the
// emulated kernels, for every kind of layer that can be split.
#include <gmock/gmock.h>

#include "foundation/batch/expert_choices.h"
#include "support/emulated_kernels.h"
#include "unit/generate/shared_engine.h"

namespace mortise {
namespace {

using test::on_ranks;

Sequences alone_on_the_cpu(const ModelConfig& config, const std::string& dtype, GeneratePath path,
                           const std::vector<GenerateRequest>& requests) {
  const Model model = Model::random(config, 5, dtype).value();
  return run_all(*make_engine(model, options_of(path)), requests);
}

// Models whose layers are split for training too, and whole ones, in turns.
void expect_tokens_of_one_rank(const std::string& path_name, int num_ranks) {
  bool is_split = false;
  for (const auto& [name, config] : layer_kinds(kVocab)) {
    SCOPED_TRACE(name);
    const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
    const Sequences want = alone_on_the_cpu(config, "float32", GeneratePath::kFast, requests);
    const SharedModel shared{config, "float32", is_split, /*on_device=*/true};
    const std::vector<Sequences> all = run_on_ranks(num_ranks, shared, {}, requests, path_name);
    expect_near(want, all[0], 2e-5);
    for (const Sequences& one : all) expect_same_bits(all[0], one);  // one rank draws each token
    is_split = !is_split;
  }
}

TEST(SharedDevice, OperatorsGiveTheTokensOfOneRank) {
  for (const int num_ranks : {2, 4}) expect_tokens_of_one_rank("device", num_ranks);
}

TEST(SharedDevice, KernelsGiveTheTokensOfOneRank) {
  const test::EmulatedKernels emulated;
  expect_tokens_of_one_rank("device_kernels", 2);
}

TEST(SharedDevice, Float64TokensAreThoseOfOneRank) {
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  const Sequences want = alone_on_the_cpu(config, "float64", GeneratePath::kPlain, requests);
  for (const Sequences& got : run_on_ranks(4, {config, "float64", true, true}, {}, requests))
    expect_near(want, got, 1e-6);
}

// A bfloat16 model rounds each rank's products, so a log-prob may differ by as much. Later tokens may then be others.
TEST(SharedDevice, Bfloat16FirstTokensAreNearThoseOfOneRank) {
  const test::EmulatedKernels emulated;
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  Model alone = Model::random(config, 5, "bfloat16").value();
  move_to_device(alone);
  const Sequences want = run_all(*make_engine(alone), requests);
  for (const bool is_split : {false, true}) {
    const std::vector<Sequences> all = run_on_ranks(2, {config, "bfloat16", is_split, true}, {}, requests);
    for (const auto& [key, sequence] : want) {
      ASSERT_EQ(all[0].at(key).ids[0], sequence.ids[0]);
      EXPECT_NEAR(all[0].at(key).log_prob[0], sequence.log_prob[0], 4e-3);
    }
    expect_same_bits(all[0], all[1]);
  }
}

// Few slots and small passes: samples leave while others run, and prompts enter in pieces. There are fewer rows than ranks
// at the end, so some ranks draw nothing. A graph would hold no collectives: none is used.
TEST(SharedDevice, NoScheduleChangesAToken) {
  const test::EmulatedKernels emulated;
  const test::UseRecordedGraphs graphs;
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  const Sequences want = alone_on_the_cpu(config, "float32", GeneratePath::kFast, requests);
  for (const auto& [max_num_seqs, max_batch_tokens] : {std::pair{1, 256}, {3, 8}}) {
    EngineOptions options;
    options.max_num_seqs = max_num_seqs;
    options.max_batch_tokens = max_batch_tokens;
    for (const Sequences& got : run_on_ranks(4, {config, "float32", true, true}, options, requests, "device_kernels"))
      expect_near(want, got, 2e-5);
  }
  EXPECT_EQ(test::RecordedGraphs::counts().captures, 0);
}

TEST(SharedDevice, ChangedWeightsCount) {
  const test::EmulatedKernels emulated;
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  const auto halve = [](const Model& model) {
    const at::NoGradGuard no_grad;
    for (const NamedParameter& parameter : model.trainable()) parameter.tensor.detach().mul_(0.5);
  };
  const Model cpu = Model::random(config, 5, "float32").value();
  const Sequences before = run_all(*make_engine(cpu), requests);
  halve(cpu);
  const Sequences after = run_all(*make_engine(cpu), requests);
  for (const bool is_split : {false, true}) {
    on_ranks(2, [&](Communicator& communicator) {
      Model model = Model::random(config, 5, "float32").value();
      move_to_device(model);
      EngineOptions own;
      own.ranks = std::make_shared<TensorGroup>(communicator, 2);
      if (is_split) model.split_layers(own.ranks);
      const auto shared = make_engine(model, own);
      expect_near(before, run_all(*shared, requests), 2e-5);
      halve(model);
      expect_near(after, run_all(*shared, requests), 2e-5);
    });
  }
}

// The other rank is lost in one of the collectives. What this one computes afterwards has no meaning.
class LosesARank : public TensorRanks {
 public:
  explicit LosesARank(int64_t calls) : left_(calls) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 2; }
  [[nodiscard]] int group() const override { return 0; }
  [[nodiscard]] int num_groups() const override { return 1; }
  void sum(const at::Tensor& /*tensor*/) override { --left_; }
  void sum_of_neighbours(const at::Tensor& /*tensor*/, int /*size*/) override { --left_; }
  void gather(const at::Tensor& input, const at::Tensor& output) override {
    if (--left_ < 0) return;
    for (int64_t part = 0; part < 2; ++part) output.narrow(0, part * input.size(0), input.size(0)).copy_(input);
  }
  void exchange(const at::Tensor& /*input*/, std::span<const int64_t> /*input_sizes*/, const at::Tensor& /*output*/,
                std::span<const int64_t> /*output_sizes*/) override {}
  [[nodiscard]] Result<> status() const override {
    if (left_ >= 0) return {};
    return Error{ErrorKind::kRankFailure, "rank 1 was lost", "", ""};
  }
  [[nodiscard]] int64_t left() const { return left_; }

 private:
  int64_t left_;
};

TEST(SharedDevice, ALostRankIsTheErrorWhereverItIsLost) {
  const test::EmulatedKernels emulated;
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests{make_request(1, {5, 6, 7}, 2, {.max_new_tokens = 2})};
  for (const char* dtype : {"float32", "float64"}) {  // with kernels, and without
    for (int64_t calls = 0;; ++calls) {
      Model model = Model::random(config, 5, dtype).value();
      move_to_device(model);
      EngineOptions options;
      const auto ranks = std::make_shared<LosesARank>(calls);
      options.ranks = ranks;
      const auto engine = make_engine(model, options);
      ASSERT_TRUE(engine->submit(requests).ok());
      const auto polled = engine->poll([](const GeneratedSequence&) { return true; }, std::chrono::nanoseconds(-1));
      if (ranks->left() >= 0) break;  // nothing was lost
      ASSERT_FALSE(polled.ok()) << calls;
      EXPECT_EQ(polled.error().kind, ErrorKind::kRankFailure) << calls << " " << polled.error().to_string();
    }
  }
}

// R3: each rank notes the experts that the tokens took, as one rank does.
TEST(SharedDevice, RanksNoteTheExperts) {
  const ModelConfig config = moe_config();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  EngineOptions options;
  options.records_experts = true;
  const test::EmulatedKernels emulated;
  Model alone = Model::random(config, 5, "float32").value();
  move_to_device(alone);
  const Sequences want = run_all(*make_engine(alone, options), requests);
  ASSERT_FALSE(want.begin()->second.experts.empty());
  for (const Sequences& got : run_on_ranks(2, {config, "float32", true, true}, options, requests)) {
    expect_near(want, got, 2e-5);
    for (const auto& [key, sequence] : want) EXPECT_EQ(got.at(key).experts, sequence.experts);
  }
}

}  // namespace
}  // namespace mortise
