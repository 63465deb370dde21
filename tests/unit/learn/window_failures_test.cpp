// A rank that fails while ranks read embedding and head window by window: every rank ends its update with the error that
// names it, and nobody keeps memory. If ranks share the layers too, those of other groups wait in other calls then.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>

#include "layer_variants.h"
#include "support/counting_allocator.h"

namespace mortise {
namespace {

// What the policy's head, of three windows, is compared to.
enum class Other { kReference, kTeacher };

class WindowFailures : public testing::Test {
 protected:
  // Each rank in turn, at every third message.
  void expect_named_at_all_times(Other other, int num_ranks = 3, int tensor_size = 1) {
    other_ = other;
    num_ranks_ = num_ranks;
    tensor_size_ = tensor_size;
    const int64_t num_calls = update(0, 0);
    EXPECT_GT(num_calls, 25 / tensor_size);
    for (int64_t call = 1; call <= num_calls && !HasFailure(); call += 3) {
      SCOPED_TRACE(fmt::format("message {} of {}", call, num_calls));
      update(static_cast<int>(call / 3) % num_ranks_, call);
    }
  }

 private:
  // One update of a policy whose micro-batches leave the last rank without work of its own. `victim` fails at the `call`-th
  // message about embedding and head; call 0: nobody fails. Returns the messages of a rank.
  int64_t update(int victim, int64_t call) {
    std::atomic<int64_t> num_calls = 0;
    const int64_t before = tensors_.bytes();
    test::on_ranks(num_ranks_, [&](Communicator& rank) {
      Communicator& same_part = tensor_size_ == 1 ? rank : *rank.strided(tensor_size_).value();
      auto& readers = dynamic_cast<test::ThreadRank&>(same_part);
      readers.fail_at("reading embedding and head", rank.rank() == victim ? call : 0);
      const Result<UpdateReport> done = learn(rank);
      if (call == 0) {
        EXPECT_TRUE(done.ok());
        num_calls = readers.num_calls();
        return;
      }
      ASSERT_FALSE(done.ok()) << "rank " << rank.rank() << " took part in an update without rank " << victim;
      EXPECT_EQ(done.error().kind, ErrorKind::kRankFailure);
      EXPECT_EQ(done.error().what, fmt::format("rank {} lost its connection", victim));
    });
    EXPECT_EQ(tensors_.bytes(), before);
    return num_calls;
  }

  Result<UpdateReport> learn(Communicator& communicator) const {
    const ZeroOptions zero{&communicator, 3};
    TestPolicy policy(config_, "float32", 5, zero, tensor_size_, /*window_bytes=*/1);
    std::optional<TestPolicy> reference;
    LearnerOptions options = cut_by({2 * tensor_size_, 0});  // one micro-batch less than there are groups
    std::vector<std::string> loss{"actor.policy_loss.loss_mode=vanilla"};
    if (other_ == Other::kReference) {
      reference.emplace(config_, "float32", 6, zero, tensor_size_, /*window_bytes=*/1);
      options.reference = &reference->model;
      loss = kWholeKl;
    } else {
      options.teacher_loss = {&teacher_, 0.3, 0.4};
    }
    const auto objective = objective_of(loss);
    share(options, communicator, /*deterministic=*/false, 1, tensor_size_);
    const RandomRows data(false, {.vocab = 50, .groups = 2, .samples = 2, .max_length = 6});
    ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
    return learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2});
  }

  static ModelConfig config() {
    ModelConfig config = small_config(2 * kHeadWindowRows + 50, 1);
    config.hidden_size = 16;
    return config;
  }
  const ModelConfig config_ = config();
  const Model teacher_ = Model::random(config_, 7, "float32").value().clone_frozen();
  CountingAllocator& tensors_ = CountingAllocator::install();
  Other other_ = Other::kReference;
  int num_ranks_ = 3, tensor_size_ = 1;
};

TEST_F(WindowFailures, InAWalkOverPolicyAndReferenceEndTheUpdatesOfAllRanks) {
  expect_named_at_all_times(Other::kReference);
}

TEST_F(WindowFailures, InAWalkOverRowsOfSplitLayersEndTheUpdatesOfAllRanks) {
  expect_named_at_all_times(Other::kReference, 4, 2);
}

TEST_F(WindowFailures, InAWalkNextToATeacherEndTheUpdatesOfAllRanks) { expect_named_at_all_times(Other::kTeacher); }

}  // namespace
}  // namespace mortise
