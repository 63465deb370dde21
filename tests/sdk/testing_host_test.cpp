// mortise/testing/reward.h as an author uses it, on a reward that gives tokens theirs and on one that does not.
#include <mortise/testing/reward.h>

int main(int argc, char** argv) {
  const mortise_test_row rows[] = {{"p", "abc", {nullptr}}, {"p", "", {nullptr}}};
  double rewards[2];
  float tokens[6] = {9, 9, 9, 9, 9, 9};

  mortise_test_plugin steps = mortise_test_open(argc, argv, MORTISE_KIND_REWARD, "steps", nullptr);
  MORTISE_CHECK((steps.descriptor->flags & MORTISE_FLAG_TOKEN_REWARDS) != 0);
  MORTISE_CHECK(mortise_test_score_tokens(&steps, rows, 2, 3, rewards, tokens) == MORTISE_OK);
  for (int t = 0; t < 6; ++t) MORTISE_CHECK(tokens[t] == float(t % 3) / 4);
  MORTISE_CHECK(rewards[0] == 0.5 && rewards[1] == 0.5);
  MORTISE_CHECK(mortise_test_score(&steps, rows, 2, rewards) == MORTISE_OK);  // a host that does not ask
  MORTISE_CHECK(rewards[1] == 0.5);
  const int steps_status = mortise_test_close(&steps);

  mortise_test_plugin mean = mortise_test_open(argc, argv, MORTISE_KIND_REWARD, "group_mean", nullptr);
  MORTISE_CHECK(mortise_test_score_tokens(&mean, rows, 2, 3, rewards, tokens) == MORTISE_OK);
  for (const float token : tokens) MORTISE_CHECK(token == 0);
  MORTISE_CHECK(rewards[0] == 2);
  return mortise_test_close(&mean) + steps_status;
}
