// mortise/testing/reward.h as an author uses it: token rewards, typed columns, and all that a call says of its rows.
#include <mortise/testing/reward.h>

static int token_rewards(int argc, char** argv) {
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

static int rows_say_all(int argc, char** argv) {
  const mortise_test_row rows[] = {
      {"p", "level", {"#level", "3", "#share", "0.5", "$tags", "[1, 2]"}},
      {"p", "level", {"#share", "1"}},  // its level is null
      {"p", "level as number", {"#level", "-4"}},
      {"p", "share", {"#share", "2"}},
      {"p", "tags", {"$tags", "[1]"}},
      {"p", "messages", {nullptr}},
      {"p", "prompt ids", {nullptr}},
      {"p", "finish", {nullptr}},
      {"p", "sample", {nullptr}},
      {"p", "step", {nullptr}},
      {"p", "most", {nullptr}},
  };
  const char* messages[11] = {nullptr, nullptr, nullptr, nullptr, nullptr, "[{}]"};
  const int32_t finish[11] = {0, 0, 0, 0, 0, 0, 0, MORTISE_FINISH_LENGTH};
  const int64_t group[11] = {0, 0, 0, 0, 0, 0, 0, 0, 2}, sample[11] = {0, 0, 0, 0, 0, 0, 0, 0, 1};
  mortise_test_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.messages = messages;
  batch.finish_reason = finish;
  batch.group_index = group;
  batch.sample_index = sample;
  batch.num_prompt_ids = 4;
  batch.step = 7;
  batch.max_response_length = 64;
  batch.is_validation = 1;

  double rewards[11];
  mortise_test_plugin echo = mortise_test_open(argc, argv, MORTISE_KIND_REWARD, "echo", nullptr);
  MORTISE_CHECK(mortise_test_score_batch(&echo, rows, 11, &batch, rewards) == MORTISE_OK);
  MORTISE_CHECK(rewards[0] == 3);
  MORTISE_CHECK(isnan(rewards[1]));
  const double others[9] = {-4, 2, 3, 4, 4, 1, 218, 7.5, 64};
  for (int i = 0; i < 9; ++i) MORTISE_CHECK(rewards[i + 2] == others[i]);
  return mortise_test_close(&echo);
}

int main(int argc, char** argv) { return token_rewards(argc, argv) + rows_say_all(argc, argv); }
