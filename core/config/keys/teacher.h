// [teacher]: a frozen model that the policy is drawn to.
#pragma once

#include <optional>
#include <string>

namespace mortise {

struct TeacherConfig {
  std::optional<std::string> path;  // folder; null = there is none
  double loss_coef = 0.0;           // factor of the divergence over the vocabulary, in the loss
  double divergence_beta = 0.5;     // which divergence: 0 forward KL, 1 reverse KL, between: generalised Jensen-Shannon
  double advantage_coef = 0.0;      // times log-prob(teacher) - log-prob(old policy), added to the advantages
  bool operator==(const TeacherConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Keys>
void describe_teacher(Keys& keys) {
  keys.compared(
          "path", &TeacherConfig::path,
          "Folder of the teacher, or its name on the hub. It must have the policy's vocabulary. null: no teacher.")
      .place()
      .no_effect(
          kInTrain,
          [](const auto& k) {
            const TeacherConfig& teacher = k.config.teacher;
            return teacher.path && teacher.loss_coef == 0 && teacher.advantage_coef == 0;
          },
          "teacher.loss_coef and teacher.advantage_coef are 0");
  keys.compared("loss_coef", &TeacherConfig::loss_coef,
                "Coefficient of the divergence between the teacher and the policy over the whole vocabulary, at every "
                "completion token (on-policy distillation, GKD, arXiv 2306.13649). It has the weights of "
                "actor.loss_agg_mode. Logits of both are divided by rollout.temperature.")
      .at_least(0)
      .at_most(1e6);
  keys.compared(
          "divergence_beta", &TeacherConfig::divergence_beta,
          "The divergence of loss_coef. 0: forward KL(teacher || policy). 1: reverse KL(policy || teacher). "
          "Between: beta KL(teacher || M) + (1 - beta) KL(policy || M) with M = beta teacher + (1 - beta) policy, "
          "the generalised Jensen-Shannon divergence. As in TRL's and ms-swift's GKD.")
      .at_least(0)
      .at_most(1)
      .no_effect(
          kInTrain, [](const auto& k) { return k.config.teacher.loss_coef == 0; }, "teacher.loss_coef is 0");
  keys.compared("advantage_coef", &TeacherConfig::advantage_coef,
                "Adds this many times the teacher's log-prob minus the old policy's to the advantage of each token, "
                "after the estimator (on-policy distillation as a reward; ms-swift: teacher_kl_coef).")
      .at_least(0)
      .at_most(1e6);
}

template <class Catalog>
void describe_teacher_section(Catalog& catalog) {
  auto keys = catalog.table("teacher", "A frozen teacher, for on-policy distillation within reinforcement learning.",
                            [](auto& run) -> TeacherConfig& { return run.teacher; });
  keys.unread_by(kInSft);
  describe_teacher(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
