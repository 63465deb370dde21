// What plugins do wrong, and what the user reads about it.
#include "plugin/host/guard.h"

#include <atomic>
#include <cmath>

#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/advantage_estimator.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/kinds/tensor_args.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

// Two rows of three tokens; the last token of row 0 is masked.
struct Batch {
  std::vector<int64_t> offsets = {0, 3, 6}, row_id = {10, 11}, group = {4, 4};
  std::vector<float> log_prob = {-1, -2, -3, -4, -5, -6}, old = log_prob, advantages = {1, 1, 1, -1, -1, -1},
                     weight = std::vector<float>(6, 0.5F);
  std::vector<uint8_t> mask = {1, 1, 0, 1, 1, 1};
  std::vector<float> loss = std::vector<float>(6, 7.0F), grad = std::vector<float>(6, 7.0F);

  StepView input() const {
    StepView in;
    in.layout = {offsets, row_id, group};
    in.set<column::LogProb>(log_prob);
    in.set<column::OldLogProb>(old);
    in.set<column::Advantages>(advantages);
    in.set<column::ResponseMask>(mask);
    in.set<column::Weight>(weight);
    in.step = 12;
    return in;
  }
  PolicyLossOutput output() { return {loss, grad, {}}; }
};

class RudeTest : public testing::Test {
 protected:
  std::string run(const std::string& name, const CallOptions& options = {}, const RunKey& key = {}) {
    auto made = PolicyLoss::create(registry_, name, nlohmann::ordered_json::object(), key);
    if (!made.ok()) return made.error().to_string();
    return error_of(made->compute(batch_.input(), batch_.output(), &metrics_, options));
  }

  PluginRegistry registry_ = test::open_registry({"rude"});
  Batch batch_;
  MetricSet metrics_;
};

// Long outputs go in blocks, their end token by token; of two outputs the first is named first.
TEST(SettleTest, EveryLengthIsJudgedTokenByToken) {
  InstanceIdentity identity;
  identity.label = "a loss";
  const CallSite site{&identity, "compute", 1};
  for (const size_t n : {1, 255, 256, 1000}) {
    const std::vector<int64_t> offsets = {0, static_cast<int64_t>(n)}, id = {0};
    const Layout layout{offsets, id, id};
    std::vector<uint8_t> mask(n);
    std::vector<float> weight(n), values(n), by_mask(n), want(n), want_by_mask(n);
    for (size_t t = 0; t < n; ++t) {
      mask[t] = t % 7 == 3 ? 0 : 2;
      weight[t] = t % 5 == 3 ? -0.0F : 1e-40F;
      const float rubbish = t % 2 == 0 ? NAN : INFINITY, good = static_cast<float>(t) - 300.0F;
      want_by_mask[t] = mask[t] != 0 ? good : 0.0F;
      want[t] = mask[t] != 0 && weight[t] != 0 ? good : 0.0F;
      by_mask[t] = mask[t] != 0 ? good : rubbish;
      values[t] = mask[t] != 0 && weight[t] != 0 ? good : rubbish;
    }
    std::vector<float> second = values;
    const auto settle = [&](std::vector<float>& a, std::vector<float>& b) {
      const NamedOutput outputs[] = {{"loss", a}, {"none", {}}, {"grad", b}};
      return error_of(settle_outputs(site, outputs, layout, {mask, weight}));
    };
    EXPECT_EQ(settle(values, second), "ok");
    EXPECT_EQ(values, want);
    EXPECT_EQ(second, want);
    const NamedOutput alone[] = {{"kl", by_mask}};
    EXPECT_EQ(error_of(settle_outputs(site, alone, layout, {mask})), "ok");
    EXPECT_EQ(by_mask, want_by_mask);
    for (const size_t bad : {size_t{0}, n / 2 / 35 * 35, (n - 1) / 35 * 35}) {  // ones that count
      std::vector<float> good = want, broken = want, early = want;
      broken[bad] = bad % 2 == 0 ? -INFINITY : NAN;
      early[0] = NAN;
      const std::string place = " at token " + std::to_string(bad) + " of row 0";
      EXPECT_THAT(settle(broken, early), HasSubstr("'loss'" + place));
      EXPECT_THAT(settle(good, broken), HasSubstr("'grad'" + place));
    }
  }
}

TEST_F(RudeTest, AGoodLossGivesLossAndGradient) {
  EXPECT_EQ(run("plain"), "ok");
  EXPECT_THAT(batch_.loss, ElementsAre(1, 2, 0, -4, -5, -6));  // 0: masked
  EXPECT_THAT(batch_.grad, ElementsAre(-0.5, -0.5, 0, 0.5, 0.5, 0.5));
}

TEST_F(RudeTest, ValueOnlyLeavesTheGradientOut) {
  auto made = PolicyLoss::create(registry_, "plain", nlohmann::ordered_json::object(), {});
  ASSERT_OK(made);
  EXPECT_OK(made->compute(batch_.input(), {batch_.loss, {}, {}}, nullptr));
  EXPECT_EQ(batch_.grad[0], 7.0F);
}

TEST_F(RudeTest, ErrorNamesKindPluginPackHashSlotAndStep) {
  EXPECT_THAT(run("says_why"),
              MatchesRegex(R"(policy_loss says_why@test\.rude 1\.0\.0 \([0-9a-f]{12}\), compute, step 12: )"
                           R"(advantages must not be constant \(INVALID_ARGUMENT\))"));
}

TEST_F(RudeTest, NonFiniteOutputsNameTheToken) {
  EXPECT_THAT(run("nan_everywhere"),
              AllOf(HasSubstr("wrote nan to output 'loss'"), HasSubstr("token 0 of row 0 (row 10 of the update)")));
  batch_.mask.assign(6, 1);
  EXPECT_THAT(run("inf_gradient"),
              AllOf(HasSubstr("wrote inf to output 'grad_log_prob'"), HasSubstr("token 2 of row 0")));
}

TEST_F(RudeTest, WritesBesideAnOutputAreSeenInCheckMode) {
  RunKey key;
  key.check_writes = true;
  EXPECT_EQ(run("plain", {}, key), "ok");
  EXPECT_THAT(batch_.loss, ElementsAre(1, 2, 0, -4, -5, -6));
  EXPECT_THAT(
      run("writes_behind", {}, key),
      MatchesRegex(R"(policy_loss writes_behind@test\.rude 1\.0\.0 \([0-9a-f]{12}\), compute, step 12: )"
                   R"(wrote at least [34] bytes behind the end of output 'loss', whose last is token 2 of row 1 )"
                   R"(\(row 11 of the update\).*R33.*)"));
  EXPECT_THAT(run("writes_before", {}, key),
              AllOf(HasSubstr("in front of output 'grad_log_prob'"), HasSubstr("token 0 of row 0")));
}

// Outputs are zeroed first, unless the plugin says that it fills them; then check mode finds what it leaves out.
TEST_F(RudeTest, WhatIsNotWrittenIsZeroOrFound) {
  EXPECT_EQ(run("leaves_out"), "ok");
  EXPECT_THAT(batch_.loss, ElementsAre(1, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch_.grad, ElementsAre(1, 0, 0, 0, 0, 0));
  RunKey key;
  key.check_writes = true;
  EXPECT_EQ(run("leaves_out", {}, key), "ok");
  EXPECT_THAT(run("says_it_writes_all", {}, key),
              AllOf(HasSubstr("wrote nan to output 'loss'"), HasSubstr("token 1 of row 0")));
}

TEST_F(RudeTest, MaskedAndWeightlessCellsAreZeroWhateverWasWritten) {
  EXPECT_EQ(run("nan_masked"), "ok");
  EXPECT_EQ(batch_.loss[2], 0.0F);
  EXPECT_EQ(batch_.grad[2], 0.0F);
  batch_.weight[5] = 0;
  EXPECT_EQ(run("plain"), "ok");
  EXPECT_EQ(batch_.loss[5], 0.0F);
}

TEST_F(RudeTest, StatusCodes) {
  EXPECT_THAT(run("bare_code"), HasSubstr("failed with DATA_LOSS"));
  EXPECT_THAT(run("odd_code"), HasSubstr("failed with status 12345"));
  EXPECT_THAT(run("fails_yet_ok"), HasSubstr("half done (ABORTED), but returned 0"));
}

TEST_F(RudeTest, ExceptionsDoNotCross) {
  EXPECT_THAT(run("throws"), HasSubstr("threw an exception: index 7"));
  EXPECT_THAT(run("throws_int"), HasSubstr("threw something that is not a std::exception"));
  EXPECT_THAT(run("create_throws"), AllOf(HasSubstr("create: threw an exception: constructor went wrong")));
  EXPECT_THAT(run("create_fails"), HasSubstr("no key given (UNAVAILABLE)"));
}

TEST_F(RudeTest, MissingMandatorySlot) { EXPECT_THAT(run("empty"), HasSubstr("lacks the mandatory slot 'compute'")); }

TEST_F(RudeTest, MandatoryParameterIsAskedForBeforeLoading) {
  EXPECT_THAT(run("must"), HasSubstr("needs the parameter 'must'"));
}

TEST_F(RudeTest, MetricsReachTheSetOnlyWithSuccess) {
  EXPECT_EQ(run("counts"), "ok");
  EXPECT_EQ(metrics_.value("rude/mean"), 1.5);
  EXPECT_EQ(metrics_.value("rude/max"), 3.0);
  metrics_.clear();
  EXPECT_THAT(run("bad_metric"), HasSubstr("'rude/x' has the unknown reduction 77"));
  EXPECT_TRUE(metrics_.empty());
}

TEST_F(RudeTest, DeadlineIsTold) {
  CallOptions options;
  options.timeout_ms = 20;
  EXPECT_THAT(run("slow", options), AllOf(HasSubstr("took"), HasSubstr("its limit is")));
}

TEST_F(RudeTest, CancellationIsTold) {
  const std::atomic<bool> stop = true;
  EXPECT_EQ(run("slow", {}, {0, &stop}), "ok");  // it sees the wish at once and ends well
}

TEST_F(RudeTest, ViewsKeepThePromisesOfTheAbi) {
  EXPECT_EQ(run("checks_views"), "ok");
  // From an odd address too: the host goes through aligned scratch.
  auto made = PolicyLoss::create(registry_, "checks_views", nlohmann::ordered_json::object(), {});
  ASSERT_OK(made);
  std::vector<float> wide(8, -1.0F), loss(8, 7.0F), grad(8, 7.0F);
  StepView in = batch_.input();
  in.set<column::LogProb>(std::span(wide).subspan(1, 6));
  EXPECT_OK(made->compute(in, {std::span(loss).subspan(1, 6), std::span(grad).subspan(1, 6), {}}, nullptr));
  EXPECT_THAT(loss, ElementsAre(7, 1, 1, 0, -1, -1, -1, 7));
}

TEST_F(RudeTest, WrongSizesAreTheEnginesBug) {
  auto made = PolicyLoss::create(registry_, "plain", nlohmann::ordered_json::object(), {});
  ASSERT_OK(made);
  StepView in = batch_.input();
  in.set<column::Advantages>(in.get<column::Advantages>().first(5));
  auto result = made->compute(in, batch_.output(), nullptr);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kInternal);
  EXPECT_THAT(result.error().what, HasSubstr("'advantages' has 5 elements instead of 6"));
  in = batch_.input();
  in.layout.group_index = {};
  EXPECT_THAT(error_of(made->compute(in, batch_.output(), nullptr)), HasSubstr("a layout that is not one"));
}

TEST_F(RudeTest, AnEmptyBatchIsFine) {
  auto made = PolicyLoss::create(registry_, "checks_views", nlohmann::ordered_json::object(), {});
  ASSERT_OK(made);
  const std::vector<int64_t> offsets = {0};
  StepView in;
  in.layout = {offsets, {}, {}};
  EXPECT_THAT(error_of(made->compute(in, {}, nullptr)), HasSubstr("ok"));
}

TEST_F(RudeTest, StateGoesAroundByteForByte) {
  auto first = PolicyLoss::create(registry_, "stateful", nlohmann::ordered_json::object(), {});
  auto second = PolicyLoss::create(registry_, "stateful", nlohmann::ordered_json::object(), {});
  ASSERT_OK(first);
  ASSERT_OK(second);
  const std::string bytes("a\0b\xff", 4);
  ASSERT_OK(first->instance().load_state(bytes));
  ASSERT_OK_AND_ASSIGN(const auto saved, first->instance().save_state());
  EXPECT_EQ(saved, bytes);
  ASSERT_OK(second->instance().load_state(*saved));
  EXPECT_EQ(second->instance().save_state().value(), bytes);
  EXPECT_THAT(error_of(second->instance().load_state(std::string(101, 'x'))), HasSubstr("load: too much state"));

  auto plain = PolicyLoss::create(registry_, "plain", nlohmann::ordered_json::object(), {});
  ASSERT_OK(plain);
  EXPECT_EQ(plain->instance().save_state().value(), std::nullopt);
  EXPECT_THAT(error_of(plain->instance().load_state("x")),
              HasSubstr("state of this plugin, but the plugin cannot load any"));
}

TEST_F(RudeTest, StraightThroughHasTheGradientOfK2) {
  auto kl = KlEstimator::create(registry_, "constant+", nlohmann::ordered_json::object(), {});
  ASSERT_OK(kl);
  EXPECT_TRUE(kl->straight_through());
  const std::vector<float> ref = {-1, -1, -1, -1, -1, -1};
  StepView in;
  in.layout = {batch_.offsets, batch_.row_id, batch_.group};
  in.set<column::LogProb>(batch_.log_prob);
  in.set<column::RefLogProb>(ref);
  in.set<column::ResponseMask>(batch_.mask);
  in.set<column::Weight>(batch_.weight);
  EXPECT_OK(kl->compute(in, {batch_.loss, batch_.grad}, nullptr));
  EXPECT_THAT(batch_.loss, ElementsAre(0.25, 0.25, 0, 0.25, 0.25, 0.25));
  EXPECT_THAT(batch_.grad, ElementsAre(0, -0.5, 0, -1.5, -2, -2.5));
  auto plain = KlEstimator::create(registry_, "test.rude/constant@^1", nlohmann::ordered_json::object(), {});
  ASSERT_OK(plain);
  EXPECT_OK(plain->compute(in, {batch_.loss, batch_.grad}, nullptr));
  EXPECT_THAT(batch_.grad, ElementsAre(99, 99, 0, 99, 99, 99));
  EXPECT_OK(KlEstimator::create(registry_, "test.rude/constant+@^1", nlohmann::ordered_json::object(), {}));
}

TEST_F(RudeTest, RequiredInputsAreAskedFor) {
  auto made = AdvantageEstimator::create(registry_, "needs_values", nlohmann::ordered_json::object(), {});
  ASSERT_OK(made);
  AdvantageInput in;
  in.columns.layout = {batch_.offsets, batch_.row_id, batch_.group};
  in.columns.set<column::TokenLevelRewards>(batch_.log_prob);
  in.columns.set<column::ResponseMask>(batch_.mask);
  EXPECT_THAT(error_of(made->compute(in, {batch_.loss, batch_.grad}, nullptr)),
              HasSubstr("requires the input 'values', which this run does not have"));
  in.columns.set<column::Values>(batch_.advantages);
  const std::vector<float> rewards = {3, 4, 5, 6}, weights = {1, 1};  // [B=2, K=2]
  in.rewards = rewards;
  in.reward_weights = weights;
  EXPECT_OK(made->compute(in, {batch_.loss, batch_.grad}, nullptr));
  EXPECT_THAT(batch_.loss, ElementsAre(1, 1, 1, -1, -1, -1));
  EXPECT_THAT(batch_.grad, testing::Each(6.0F));  // rewards[0] * K
}

TEST(AggregationTest, DefaultFollowsThePlugin) {
  PluginInfo info;
  EXPECT_EQ(default_loss_agg_mode(info), "token-mean");
  info.coupling = Coupling::kRow;
  EXPECT_EQ(default_loss_agg_mode(info), "seq-mean-token-mean");
  info.params.push_back({"loss_agg_mode", ParamType::kText, "token-sum", "", std::nullopt, {}});
  EXPECT_EQ(default_loss_agg_mode(info), "token-sum");
}

}  // namespace
}  // namespace mortise
