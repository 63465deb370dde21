// The teacher's divergence in updates: against plain torch, for every cut, and on top of the policy loss.
#include "plain_term.h"

namespace mortise {
namespace {

// KL(teacher || policy).
PlainTerm plain_teacher_term(Model& model, const Model& teacher, const StepTable& batch) {
  return plain_term(model, teacher, batch, 0.9, [](const at::Tensor& log_p, const at::Tensor& log_q) {
    return (log_q.exp() * (log_q - log_p)).sum(-1);
  });
}

LearnerOptions taught_by(const Model& teacher, const MicroBatchOptions& cut, double beta = 0.0) {
  LearnerOptions options = cut_by(cut);
  options.temperature = 0.9;
  options.teacher_loss = {&teacher, 0.3, beta};
  return options;
}

double metric_of_report(const UpdateReport& report, const std::string& name) {
  for (const MetricValue& metric : report.metrics.values()) {
    if (metric.name == name) return metric.value;
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST(TeacherTerm, IsThatOfPlainTorch) {
  TestObjective run({"actor.loss_agg_mode=token-mean"});
  TestPolicy policy("float64"), other("float64", 29, 2, /*seed=*/6);
  RandomRows data(false);
  data.batch.make<column::Advantages>();  // zeros: the term is all there is
  const PlainTerm want = plain_teacher_term(policy.model, other.model.clone_frozen(), data.batch);
  const Model teacher = other.model.clone_frozen();
  UpdateReport report;
  const auto grads = policy.gradients(run.objective, data.batch, taught_by(teacher, {3, 0}), &report);
  EXPECT_LE(worst_relative_l2(grads, want.grads), 1e-7);  // weights of tokens are float
  EXPECT_GT(want.mean, 0.1);
  EXPECT_NEAR(report.sums.loss, 0.3 * want.mean, 1e-6);
  EXPECT_NEAR(metric_of_report(report, "actor/teacher_divergence"), want.mean, 1e-9);
}

TEST(TeacherTerm, DoesNotDependOnTheCut) {
  for (const std::string loss : {"vanilla", "gspo", "kl_cov"}) {  // local to tokens, to rows, over the update
    TestObjective run({"actor.loss_agg_mode=token-mean", "actor.policy_loss.loss_mode=" + loss});
    for (const std::string dtype : {"float32", "float64"}) {
      TestPolicy policy(dtype), other(dtype, 29, 2, /*seed=*/6);
      const RandomRows data(false);
      UpdateReport whole_report, part_report;
      const auto whole = policy.gradients(run.objective, data.batch, taught_by(other.model, kAll, 0.4), &whole_report);
      for (const MicroBatchOptions cut : {MicroBatchOptions{1, 0}, {5, 0}, {0, 25}}) {
        const auto parts = policy.gradients(run.objective, data.batch, taught_by(other.model, cut, 0.4), &part_report);
        EXPECT_LE(worst_relative_l2(parts, whole), dtype == "float32" ? 1e-5 : 1e-12) << loss << " rows " << cut.rows;
        EXPECT_NEAR(part_report.sums.loss, whole_report.sums.loss, 1e-5);
        EXPECT_NEAR(metric_of_report(part_report, "actor/teacher_divergence"),
                    metric_of_report(whole_report, "actor/teacher_divergence"), 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace mortise
