// replay: order, checks, back-pressure and resume; native: forwarding to the host's extension.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/fake_host.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Backend = Instance<mortise_rollout_backend_vtable>;

const mortise_descriptor* backend(const std::string& name) {
  static const mortise_pack* pack =
      load_pack(std::string(MORTISE_BINARY_DIR) + "/lib/mortise/packs/mortise.rollout.so");
  return find_plugin(pack, MORTISE_KIND_ROLLOUT_BACKEND, name);
}

struct Taken {
  int64_t request_id, sample_index, version;
  int32_t reason;
  std::vector<int64_t> ids;
  bool has_log_prob;
  std::vector<float> log_prob{}, filtered_log_prob{};
};

struct Sink {
  std::vector<Taken> taken;
  size_t room = 1000;
  mortise_rollout_sink view{sizeof(mortise_rollout_sink), 0, this, &Sink::take};

  static int32_t take(void* context, const mortise_rollout_sequence* s) noexcept {
    auto& self = *static_cast<Sink*>(context);
    self.taken.push_back({s->request_id,
                          s->sample_index,
                          s->weight_version,
                          s->finish_reason,
                          {s->ids, s->ids + s->num_ids},
                          s->log_prob != nullptr});
    if (s->log_prob != nullptr) self.taken.back().log_prob = {s->log_prob, s->log_prob + s->num_ids};
    if (s->filtered_log_prob != nullptr)
      self.taken.back().filtered_log_prob = {s->filtered_log_prob, s->filtered_log_prob + s->num_ids};
    return self.taken.size() == self.room ? 1 : 0;
  }
};

int32_t submit(Backend& b, int64_t id, std::vector<int64_t> prompt, int64_t n,
               const mortise_sampling* sampling = nullptr, int64_t step = 0) {
  mortise_rollout_request request{};
  request.sampling = sampling;
  request.struct_size = sizeof request;
  request.request_id = id;
  request.first_row_id = id;
  request.step = step;
  request.prompt_ids = prompt.data();
  request.num_prompt_ids = int64_t(prompt.size());
  request.num_samples = n;
  const mortise_rollout_request* const list[] = {&request};
  uint64_t accepted = 0;
  const int32_t status = b.vtable->submit(b.self, &b.call, list, 1, &accepted);
  EXPECT_EQ(accepted, status == 0 ? 1U : 0U);
  return status;
}

class Replay : public testing::Test {
 protected:
  Replay() {
    std::ofstream(path)
        << R"({"prompt_token_ids": [3, 4], "completions": [[5, 1], [6]], "finish_reasons": ["stop", "length"], "scores": [1, 0]})"
        << "\n"
        << R"({"prompt_token_ids": [7], "completions": [[8], []], "finish_reasons": ["length", "abort"]})"
        << "\n";
  }
  TempDir dir;
  std::string path = (std::filesystem::path(dir.path()) / "samples.jsonl").string();
};

TEST_F(Replay, HandsOverWhatWasRecorded) {
  Backend b(backend("replay"), {{"path", path}});
  ASSERT_EQ(b.status, 0) << b.call.error;
  ASSERT_EQ(b.vtable->set_version(b.self, &b.call, 4), 0);
  ASSERT_EQ(submit(b, 10, {3, 4}, 2), 0) << b.call.error;
  ASSERT_EQ(submit(b, 11, {7}, 2), 0) << b.call.error;
  Sink sink;
  sink.room = 3;
  uint64_t outstanding = 0;
  ASSERT_EQ(b.vtable->poll(b.self, &b.call, &sink.view, 0, &outstanding), 0);
  EXPECT_EQ(outstanding, 1U) << "the sink had room for three of four";
  sink.room = 10;
  ASSERT_EQ(b.vtable->poll(b.self, &b.call, &sink.view, 0, &outstanding), 0);
  EXPECT_EQ(outstanding, 0U);
  ASSERT_EQ(sink.taken.size(), 4U);
  EXPECT_THAT(sink.taken[0].ids, ElementsAre(5, 1));
  EXPECT_EQ(sink.taken[0].reason, MORTISE_FINISH_STOP);
  EXPECT_EQ(sink.taken[1].reason, MORTISE_FINISH_LENGTH);
  EXPECT_EQ(sink.taken[1].sample_index, 1);
  EXPECT_EQ(sink.taken[2].request_id, 11);
  EXPECT_TRUE(sink.taken[3].ids.empty());
  EXPECT_EQ(sink.taken[3].reason, MORTISE_FINISH_ABORT);
  EXPECT_EQ(sink.taken[3].version, 4);
  EXPECT_FALSE(sink.taken[0].has_log_prob);
}

// What `mortise generate` writes, and what a run dumps (a line per completion), with their log-probs.
TEST_F(Replay, ReadsGeneratedRowsAndDumps) {
  std::ofstream(path)
      << R"({"prompt_token_ids": [3], "completions": [{"token_ids": [5, 1], "text": "x", "log_probs": [-0.5, -1.5],)"
      << R"( "filtered_log_probs": [-0.25, 0], "finish_reason": "stop"}, {"token_ids": [6], "finish_reason": "length"}]})"
      << "\n"
      << R"({"step": 1, "input": "a", "prompt_token_ids": [7], "token_ids": [8], "log_probs": [-2], "sample_index": 0,)"
      << R"( "finish_reason": "length", "response_mask": [1]})"
      << "\n"
      << R"({"step": 1, "input": "a", "prompt_token_ids": [7], "token_ids": [9, 4], "sample_index": 1, "finish_reason": "stop"})"
      << "\n";
  Backend b(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(b, 10, {3}, 2), 0) << b.call.error;
  ASSERT_EQ(submit(b, 11, {7}, 2), 0) << b.call.error;
  Sink sink;
  uint64_t outstanding = 0;
  ASSERT_EQ(b.vtable->poll(b.self, &b.call, &sink.view, 0, &outstanding), 0);
  ASSERT_EQ(sink.taken.size(), 4U);
  EXPECT_THAT(sink.taken[0].ids, ElementsAre(5, 1));
  EXPECT_THAT(sink.taken[0].log_prob, ElementsAre(-0.5F, -1.5F));
  EXPECT_THAT(sink.taken[0].filtered_log_prob, ElementsAre(-0.25F, 0.0F));
  EXPECT_EQ(sink.taken[1].reason, MORTISE_FINISH_LENGTH);
  EXPECT_FALSE(sink.taken[1].has_log_prob);
  EXPECT_THAT(sink.taken[2].log_prob, ElementsAre(-2.0F));
  EXPECT_THAT(sink.taken[3].ids, ElementsAre(9, 4));
  EXPECT_EQ(sink.taken[3].sample_index, 1);
  EXPECT_EQ(sink.taken[3].request_id, 11);
}

// Rows of two steps: one with two turns and an observation between them, one whose only turn was cut.
class ReplayOfTurns : public Replay {
 protected:
  ReplayOfTurns() {
    std::ofstream(path)
        << R"({"prompt_token_ids": [1], "token_ids": [2, 8, 9, 3, 4], "log_probs": [-1, 0, 0, -2, -3], "sample_index": 0,)"
        << R"( "finish_reason": "length", "response_mask": [1, 0, 0, 1, 1], "turns": []})"
        << "\n"
        << R"({"prompt_token_ids": [1], "token_ids": [5, 6], "sample_index": 1, "finish_reason": "length",)"
        << R"( "response_mask": [1, 1], "turns": []})"
        << "\n"
        << R"({"prompt_token_ids": [7], "token_ids": [2], "sample_index": 0, "finish_reason": "abort",)"
        << R"( "response_mask": [1], "turns": [], "environment_error": "x"})"
        << "\n";
    sampling.struct_size = sizeof sampling;
    sampling.max_new_tokens = 2;
  }
  mortise_sampling sampling{};
};

TEST_F(ReplayOfTurns, EachRequestGetsItsTurn) {
  Backend b(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(b, 1, {1}, 1, &sampling, 1), 0) << b.call.error;  // in any order
  ASSERT_EQ(submit(b, 0, {1}, 1, &sampling, 1), 0) << b.call.error;
  sampling.max_new_tokens = 5;
  ASSERT_EQ(submit(b, 0, {1, 2, 8, 9}, 1, &sampling, 1), 0) << b.call.error;
  ASSERT_EQ(submit(b, 0, {7}, 1, &sampling, 2), 0) << b.call.error;
  Sink sink;
  uint64_t outstanding = 0;
  ASSERT_EQ(b.vtable->poll(b.self, &b.call, &sink.view, 0, &outstanding), 0);
  ASSERT_EQ(sink.taken.size(), 4U);
  EXPECT_THAT(sink.taken[0].ids, ElementsAre(5, 6));
  EXPECT_EQ(sink.taken[0].reason, MORTISE_FINISH_LENGTH);
  EXPECT_THAT(sink.taken[1].ids, ElementsAre(2));
  EXPECT_EQ(sink.taken[1].reason, MORTISE_FINISH_STOP);
  EXPECT_THAT(sink.taken[1].log_prob, ElementsAre(-1.0F));
  EXPECT_THAT(sink.taken[2].ids, ElementsAre(3, 4));
  EXPECT_THAT(sink.taken[2].log_prob, ElementsAre(-2.0F, -3.0F));
  EXPECT_EQ(sink.taken[2].reason, MORTISE_FINISH_STOP) << "the row's length was reached after the turn";
  EXPECT_THAT(sink.taken[3].ids, ElementsAre(2));
  EXPECT_EQ(sink.taken[3].reason, MORTISE_FINISH_STOP) << "the environment failed, not the sampler";
}

TEST_F(ReplayOfTurns, RefusesOtherAnswersOfTheEnvironment) {
  Backend other(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(other, 0, {1}, 1, &sampling, 1), 0) << other.call.error;
  EXPECT_EQ(submit(other, 0, {1, 2, 8, 7}, 1, &sampling, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(other.call.error,
              HasSubstr("samples.jsonl:1: the conversation differs from the one asked for at token 3 of 4"));
  Backend fewer(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(fewer, 0, {1}, 1, &sampling, 1), 0) << fewer.call.error;
  EXPECT_EQ(submit(fewer, 0, {7}, 1, &sampling, 2), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(fewer.call.error, HasSubstr("samples.jsonl:1: the run asked for fewer turns of this row than it has"));
  Backend more(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(more, 1, {1}, 1, &sampling, 1), 0) << more.call.error;
  EXPECT_EQ(submit(more, 1, {1, 5, 6, 8}, 1, &sampling, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(more.call.error, HasSubstr("row 1 of step 1 has no further turn"));
  Backend cut(backend("replay"), {{"path", path}});
  sampling.max_new_tokens = 1;
  EXPECT_EQ(submit(cut, 1, {1}, 1, &sampling, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(cut.call.error, HasSubstr("samples.jsonl:2: a turn has 2 tokens, the longest one asked for 1"));
}

std::string saved_state(Backend& b, int32_t expected = 0) {
  std::string saved;
  const auto* state = static_cast<const mortise_state*>(b.vtable->get_extension(b.self, MORTISE_EXT_STATE));
  const mortise_state_sink sink{sizeof sink, 0, &saved, [](void* to, mortise_bytes bytes) noexcept {
                                  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes.data),
                                                                        bytes.size);
                                }};
  EXPECT_EQ(state->save(b.self, &b.call, &sink), expected) << b.call.error;
  return saved;
}

void load_state(Backend& b, const std::string& saved) {
  const auto* state = static_cast<const mortise_state*>(b.vtable->get_extension(b.self, MORTISE_EXT_STATE));
  ASSERT_EQ(state->load(b.self, &b.call, {saved.data(), saved.size()}), 0) << b.call.error;
}

// Two rows for each of these steps: one with a turn, and one that failed before its first turn.
std::string rows_of_steps(const std::vector<int>& steps) {
  std::string text;
  for (const int step : steps) {
    const std::string head = "{\"step\": " + std::to_string(step) + ", \"prompt_token_ids\": [";
    text += head + std::to_string(step) + R"(], "token_ids": [5, 6], "sample_index": 0, "finish_reason": "length",)" +
            R"( "response_mask": [1, 1], "turns": []})" + "\n";
    text += head + R"(9], "token_ids": [], "sample_index": 0, "finish_reason": "abort", "response_mask": [],)" +
            R"( "turns": [], "environment_error": "x"})" + "\n";
  }
  return text;
}

// The failed rows have no request. They are the last of their steps, so no later row of the step leads past them.
TEST_F(ReplayOfTurns, AFailedLastRowDoesNotShiftTheNextStep) {
  std::ofstream(path) << rows_of_steps({1, 2});
  std::string saved;
  {
    Backend b(backend("replay"), {{"path", path}});
    ASSERT_EQ(submit(b, 0, {1}, 1, &sampling, 1), 0) << b.call.error;
    ASSERT_EQ(submit(b, 0, {2}, 1, &sampling, 2), 0) << b.call.error;
    ASSERT_EQ(submit(b, 0, {1}, 1, &sampling, 3), 0) << "the file starts again: " << b.call.error;
    saved = saved_state(b);
    ASSERT_EQ(submit(b, 0, {2}, 1, &sampling, 4), 0) << "after a save: " << b.call.error;
  }
  Backend resumed(backend("replay"), {{"path", path}});
  load_state(resumed, saved);
  EXPECT_EQ(submit(resumed, 0, {2}, 1, &sampling, 4), 0) << "after a resume: " << resumed.call.error;
}

// A file of one step, which serves every step of the run.
TEST_F(ReplayOfTurns, AStepDoesNotSkipItsNextReading) {
  std::ofstream(path) << rows_of_steps({1});
  Backend b(backend("replay"), {{"path", path}});
  for (const int64_t step : {1, 2, 3}) EXPECT_EQ(submit(b, 0, {1}, 1, &sampling, step), 0) << b.call.error;
}

// The last step of a run, or of a process, is followed by a save alone.
TEST_F(ReplayOfTurns, ASaveRefusesTurnsThatNobodyAskedFor) {
  Backend fewer(backend("replay"), {{"path", path}});
  EXPECT_EQ(saved_state(fewer).size(), 8U);
  ASSERT_EQ(submit(fewer, 0, {1}, 1, &sampling, 1), 0) << fewer.call.error;
  EXPECT_EQ(saved_state(fewer, MORTISE_INVALID_ARGUMENT), "");
  EXPECT_THAT(fewer.call.error, HasSubstr("samples.jsonl:1: the run asked for fewer turns of this row than it has"));
  sampling.max_new_tokens = 5;
  ASSERT_EQ(submit(fewer, 0, {1, 2, 8, 9}, 1, &sampling, 1), 0) << fewer.call.error;
  EXPECT_EQ(saved_state(fewer).size(), 8U) << "no turn is left";

  std::ofstream(path) << rows_of_steps({1, 1});
  Backend rest(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(rest, 0, {1}, 1, &sampling, 1), 0) << rest.call.error;
  EXPECT_EQ(saved_state(rest, MORTISE_INVALID_ARGUMENT), "");
  EXPECT_THAT(rest.call.error, HasSubstr("samples.jsonl:3: the run did not ask for this row of the file's step 1"));
}

TEST_F(Replay, RefusesDumpsThatDoNotFit) {
  const std::string first =
      R"({"prompt_token_ids": [1], "token_ids": [2], "sample_index": 0, "finish_reason": "stop"})";
  const std::vector<std::pair<std::string, std::string>> files = {
      {first + "\n" + first, "samples.jsonl:2: this is completion 0 of its prompt, not 1; rollout.n is 2"},
      {first + "\n" + R"({"prompt_token_ids": [1], "completions": [], "finish_reasons": []})",
       "samples.jsonl:2: this line is not of a completion dump"},
      {first + "\n" + R"({"prompt_token_ids": [4], "token_ids": [2], "sample_index": 1, "finish_reason": "stop"})",
       "samples.jsonl:2: the prompt differs"},
      {R"({"prompt_token_ids": [1], "token_ids": [2], "finish_reason": "stop"})", "sample_index is not a place"},
      {R"({"prompt_token_ids": [1], "token_ids": [2, 3], "sample_index": 0, "finish_reason": "stop", "response_mask": [1, 0]})",
       "response_mask leaves out tokens, but the row has no turns"},
      {R"({"prompt_token_ids": [1], "token_ids": [2, 3], "sample_index": 0, "finish_reason": "stop", "response_mask": [0, 1], "turns": []})",
       "beginning with a 1"},
      {R"({"prompt_token_ids": [1], "token_ids": [2, 3], "sample_index": 0, "finish_reason": "stop", "response_mask": [1, 1], "turns": []})",
       "samples.jsonl:1: the rows have several turns, and the run's have one"},
      {R"({"prompt_token_ids": [1], "completions": [{"token_ids": [2], "finish_reason": "stop", "log_probs": [1, 2]}]})",
       "completion 0: log_probs needs one number per token"},
      {R"({"prompt_token_ids": [1], "completions": [{"token_ids": [2], "finish_reason": "stop", "log_probs": ["x"]}]})",
       "holds \"x\", not a log-probability"},
      {R"({"prompt_token_ids": [1], "completions": [{"token_ids": [2], "finish_reason": "stop"}, 7]})",
       "completion 1 is not an object"},
      {R"({"prompt_token_ids": [1], "completions": [[2]], "finish_reasons": ["stop"], "log_probs": []})",
       "log_probs needs one list per completion"},
  };
  for (const auto& [text, why] : files) {
    std::ofstream(path) << text << "\n";
    Backend b(backend("replay"), {{"path", path}});
    EXPECT_EQ(submit(b, 0, {1}, 2), MORTISE_INVALID_ARGUMENT) << why;
    EXPECT_THAT(b.call.error, HasSubstr(why));
  }
}

TEST_F(Replay, StartsAgainBehindTheLastLine) {
  Backend b(backend("replay"), {{"path", path}});
  EXPECT_EQ(submit(b, 0, {3, 4}, 2), 0);
  EXPECT_EQ(submit(b, 1, {7}, 2), 0);
  EXPECT_EQ(submit(b, 2, {3, 4}, 2), 0) << b.call.error;
}

TEST_F(Replay, NamesTheLineOfAWrongPrompt) {
  Backend b(backend("replay"), {{"path", path}});
  ASSERT_EQ(submit(b, 0, {3, 4}, 2), 0);
  EXPECT_EQ(submit(b, 1, {9}, 2), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(b.call.error, HasSubstr("samples.jsonl:2: the prompt differs"));
  EXPECT_THAT(b.call.error, HasSubstr("at token 0 (7 here, 9 asked for)"));
  EXPECT_EQ(submit(b, 2, {3}, 2), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(b.call.error, HasSubstr("samples.jsonl:1: the prompt has 2 tokens, the one asked for 1"));
}

TEST_F(Replay, RefusesOtherNumbersOfSamples) {
  Backend b(backend("replay"), {{"path", path}});
  EXPECT_EQ(submit(b, 0, {3, 4}, 3), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(b.call.error, HasSubstr("rollout.n = 3, but it has 2"));
}

TEST_F(Replay, RefusesDamagedLines) {
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"{", "samples.jsonl:1: not JSON: column 2"},
      {"[]", "not a JSON object"},
      {std::string(300'000, '['), "nested deeper than 128 levels"},
      {R"({"prompt_token_ids": )" + std::string(300'000, '[') + std::string(300'000, ']') + "}", "nested deeper"},
      {R"({"completions": []})", "prompt_token_ids is not a list"},
      {R"({"prompt_token_ids": [1.5]})", "not a token id"},
      {R"({"prompt_token_ids": [1], "completions": [[2]]})", "finish_reasons needs one entry"},
      {R"({"prompt_token_ids": [1], "completions": [[2]], "finish_reasons": ["eos"]})", "\"eos\""},
      {R"({"prompt_token_ids": [1], "completions": [[-2]], "finish_reasons": ["stop"]})", "completion 0 holds -2"},
  };
  for (const auto& [line, why] : lines) {
    std::ofstream(path) << line << "\n";
    Backend b(backend("replay"), {{"path", path}});
    EXPECT_EQ(submit(b, 0, {1}, 1), MORTISE_INVALID_ARGUMENT) << why;
    EXPECT_THAT(b.call.error, HasSubstr(why));
  }
}

TEST_F(Replay, NamesTheLineOfACompletionThatIsTooLongOrEmpty) {
  mortise_sampling sampling{};
  sampling.struct_size = sizeof sampling;
  sampling.max_new_tokens = 1;
  Backend b(backend("replay"), {{"path", path}});
  EXPECT_EQ(submit(b, 0, {3, 4}, 2, &sampling), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(b.call.error, HasSubstr("samples.jsonl:1: completion 0 has 2 tokens, the longest one asked for 1"));
  EXPECT_EQ(submit(b, 1, {7}, 2, &sampling), 0) << b.call.error;
  std::ofstream(path) << R"({"prompt_token_ids": [1], "completions": [[]], "finish_reasons": ["stop"]})"
                      << "\n";
  Backend empty(backend("replay"), {{"path", path}});
  EXPECT_EQ(submit(empty, 0, {1}, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(empty.call.error, HasSubstr("samples.jsonl:1: completion 0 is empty"));
}

TEST_F(Replay, MissingAndEmptyFilesAreRefusedAtOnce) {
  Backend missing(backend("replay"), {{"path", path + ".none"}});
  EXPECT_EQ(missing.status, MORTISE_NOT_FOUND);
  EXPECT_THAT(missing.call.error, HasSubstr("samples.jsonl.none"));
  std::ofstream(path, std::ios::trunc);
  Backend empty(backend("replay"), {{"path", path}});
  EXPECT_EQ(empty.status, MORTISE_DATA_LOSS);
}

TEST_F(Replay, ResumesAtItsPlace) {
  std::string saved;
  {
    Backend b(backend("replay"), {{"path", path}});
    for (int64_t i = 0; i < 3; ++i)
      ASSERT_EQ(submit(b, i, i % 2 == 0 ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{7}, 2), 0);
    ASSERT_NE(b.vtable->get_extension(b.self, MORTISE_EXT_STATE), nullptr);
    saved = saved_state(b);
  }
  Backend b(backend("replay"), {{"path", path}});
  const auto* state = static_cast<const mortise_state*>(b.vtable->get_extension(b.self, MORTISE_EXT_STATE));
  ASSERT_EQ(state->load(b.self, &b.call, {saved.data(), saved.size()}), 0) << b.call.error;
  EXPECT_EQ(submit(b, 9, {7}, 2), 0) << "three lines were read: the next is the second";
  EXPECT_EQ(state->load(b.self, &b.call, {saved.data(), 3}), MORTISE_DATA_LOSS);
  EXPECT_EQ(b.vtable->get_extension(b.self, "acme.other/1"), nullptr);
}

// An engine that counts what reaches it.
struct Engine {
  static inline int created = 0, destroyed = 0, aborted = 0;
  static int32_t create(const mortise_host*, mortise_call*, void** self) noexcept {
    return *self = &created, ++created, 0;
  }
  static void destroy(void* self) noexcept { destroyed += self == &created ? 1 : 100; }
  static int32_t set_version(void*, mortise_call* call, int64_t) noexcept {
    const std::string_view why = "no weights";
    return host()->fail(call, MORTISE_UNAVAILABLE, {why.data(), why.size()});
  }
  static int32_t submit(void*, mortise_call*, const mortise_rollout_request* const*, uint64_t n,
                        uint64_t* accepted) noexcept {
    return *accepted = n, 0;
  }
  static int32_t poll(void*, mortise_call*, const mortise_rollout_sink*, int64_t timeout,
                      uint64_t* outstanding) noexcept {
    return *outstanding = uint64_t(timeout), 0;
  }
  static int32_t abort(void*, mortise_call*, int64_t) noexcept { return ++aborted, 0; }
};

TEST(Native, ForwardsToTheEngine) {
  static const mortise_rollout_backend_vtable engine = {
      sizeof engine, 0,       Engine::create, Engine::destroy, nullptr,      Engine::set_version,
      nullptr,       nullptr, nullptr,        Engine::submit,  Engine::poll, Engine::abort,
      nullptr,       nullptr};
  extensions()[MORTISE_EXT_GENERATE] = &engine;
  {
    Backend b(backend("native"));
    ASSERT_EQ(b.status, 0) << b.call.error;
    EXPECT_EQ(b.vtable->set_version(b.self, &b.call, 1), MORTISE_UNAVAILABLE);
    EXPECT_EQ(b.call.error, "no weights") << "the engine's own words come through";
    EXPECT_EQ(submit(b, 1, {1}, 1), 0);
    uint64_t outstanding = 0;
    Sink sink;
    EXPECT_EQ(b.vtable->poll(b.self, &b.call, &sink.view, 17, &outstanding), 0);
    EXPECT_EQ(outstanding, 17U);
    EXPECT_EQ(b.vtable->abort(b.self, &b.call, -1), 0);
    EXPECT_EQ(b.vtable->sleep(b.self, &b.call, 1), 0) << "an engine without sleep is not asked";
    EXPECT_EQ(b.vtable->begin_update, nullptr);
    EXPECT_EQ(b.vtable->get_extension(b.self, MORTISE_EXT_STATE), nullptr);
  }
  EXPECT_EQ(Engine::created, 1);
  EXPECT_EQ(Engine::destroyed, 1);
  EXPECT_EQ(Engine::aborted, 1);
  extensions().clear();
}

TEST(Native, SaysThatThereIsNoModel) {
  extensions().clear();
  Backend b(backend("native"));
  EXPECT_EQ(b.status, MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(b.call.error, HasSubstr("holds no model"));
}

}  // namespace
}  // namespace mortise::test
