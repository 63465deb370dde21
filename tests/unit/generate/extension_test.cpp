// The engine through the C vtable, as the native backend sees it.
#include "generate/extension.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/generate/tiny_model.h"

// What the ABI calls opaque.
struct mortise_call {
  std::string text;
};

namespace mortise {
namespace {

int32_t fail(mortise_call* call, int32_t code, mortise_text text) noexcept {
  call->text.assign(text.data, text.size);
  return code;
}
mortise_host make_host() {
  mortise_host host{};
  host.struct_size = sizeof(host);
  host.fail = fail;
  return host;
}
const mortise_host kHost = make_host();

struct Received {
  std::vector<GeneratedSequence> sequences;
  static int32_t take(void* context, const mortise_rollout_sequence* s) noexcept {
    GeneratedSequence copy;
    copy.request_id = s->request_id;
    copy.sample_index = s->sample_index;
    copy.finish_reason = static_cast<FinishReason>(s->finish_reason);
    copy.weight_version = s->weight_version;
    copy.ids.assign(s->ids, s->ids + s->num_ids);
    copy.log_prob.assign(s->log_prob, s->log_prob + s->num_ids);
    static_cast<Received*>(context)->sequences.push_back(std::move(copy));
    return 0;
  }
};

class ExtensionTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.num_threads = 1;
    install_generate_model(&model_, options_);
    ASSERT_EQ(table_->create(&kHost, &call_, &self_), MORTISE_OK) << call_.text;
  }
  void TearDown() override {
    table_->destroy(self_);
    install_generate_model(nullptr, options_);
  }

  mortise_sampling sampling() const {
    mortise_sampling out{};
    out.struct_size = sizeof(out);
    out.max_new_tokens = 6;
    out.temperature = 1;
    out.top_p = 1;
    return out;
  }

  Model model_ = tiny_model();
  EngineOptions options_;
  const mortise_rollout_backend_vtable* table_ = generate_extension();
  mortise_call call_;
  void* self_ = nullptr;
};

TEST_F(ExtensionTest, GivesWhatTheEngineGives) {
  ASSERT_EQ(table_->set_version(self_, &call_, 3), MORTISE_OK);
  const std::vector<int64_t> ids = {5, 6, 7};
  const mortise_sampling params = sampling();
  mortise_rollout_request request{};
  request.struct_size = sizeof(request);
  request.request_id = 1;
  request.prompt_ids = ids.data();
  request.num_prompt_ids = 3;
  request.num_samples = 2;
  request.first_row_id = 100;
  request.seed = 17;
  request.step = 4;
  request.sampling = &params;
  const mortise_rollout_request* const requests[] = {&request};
  uint64_t accepted = 0;
  ASSERT_EQ(table_->submit(self_, &call_, requests, 1, &accepted), MORTISE_OK) << call_.text;
  EXPECT_EQ(accepted, 1U);
  Received received;
  mortise_rollout_sink sink{};
  sink.struct_size = sizeof(sink);
  sink.context = &received;
  sink.sequence = Received::take;
  uint64_t outstanding = 9;
  ASSERT_EQ(table_->poll(self_, &call_, &sink, 0, &outstanding), MORTISE_OK);
  EXPECT_EQ(outstanding, 2U);
  ASSERT_EQ(table_->poll(self_, &call_, &sink, int64_t{60} * 1000000000, &outstanding), MORTISE_OK) << call_.text;
  EXPECT_EQ(outstanding, 0U);
  SamplingParams same;
  same.max_new_tokens = 6;
  const Sequences want = run_all(*make_engine(model_), {make_request(1, ids, 2, same)});
  ASSERT_EQ(received.sequences.size(), 2U);
  for (const GeneratedSequence& s : received.sequences) {
    EXPECT_EQ(s.ids, want.at({s.request_id, s.sample_index}).ids);
    EXPECT_EQ(s.log_prob, want.at({s.request_id, s.sample_index}).log_prob);
    EXPECT_EQ(s.weight_version, 3);
    EXPECT_EQ(s.finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(table_->sleep(self_, &call_, 1), MORTISE_OK);
  EXPECT_EQ(table_->wake(self_, &call_), MORTISE_OK);
  EXPECT_EQ(table_->abort(self_, &call_, -1), MORTISE_OK);
}

// Every option reaches the sampler, and fields that an older caller's struct does not have are off.
TEST_F(ExtensionTest, TakesEveryOptionOfSampling) {
  SamplingParams want;
  want.max_new_tokens = 12;
  want.temperature = 1.2;
  want.typical_p = 0.8;
  want.repetition_penalty = 1.3;
  want.presence_penalty = 0.4;
  want.frequency_penalty = 0.2;
  want.bad_words = {{5, 6}, {7}};
  const int64_t lengths[] = {2, 1};
  const int64_t bad_ids[] = {5, 6, 7};
  mortise_sampling params = sampling();
  params.max_new_tokens = 12;
  params.temperature = 1.2;
  params.typical_p = 0.8;
  params.repetition_penalty = 1.3;
  params.presence_penalty = 0.4;
  params.frequency_penalty = 0.2;
  params.num_bad_words = 2;
  params.bad_word_lengths = lengths;
  params.bad_word_ids = bad_ids;
  const std::vector<int64_t> ids = {5, 6, 7};
  for (const bool older : {false, true}) {
    if (older) {
      params.struct_size = offsetof(mortise_sampling, typical_p);
      want = {};
      want.max_new_tokens = 12;
      want.temperature = 1.2;
    }
    mortise_rollout_request request{};
    request.struct_size = sizeof(request);
    request.request_id = 1;
    request.prompt_ids = ids.data();
    request.num_prompt_ids = 3;
    request.num_samples = 3;
    request.first_row_id = 100;
    request.seed = 17;
    request.step = 4;
    request.sampling = &params;
    const mortise_rollout_request* const requests[] = {&request};
    uint64_t accepted = 0;
    ASSERT_EQ(table_->submit(self_, &call_, requests, 1, &accepted), MORTISE_OK) << call_.text;
    Received received;
    mortise_rollout_sink sink{};
    sink.struct_size = sizeof(sink);
    sink.context = &received;
    sink.sequence = Received::take;
    uint64_t outstanding = 9;
    ASSERT_EQ(table_->poll(self_, &call_, &sink, int64_t{60} * 1000000000, &outstanding), MORTISE_OK) << call_.text;
    const Sequences same = run_all(*make_engine(model_), {make_request(1, ids, 3, want)});
    ASSERT_EQ(received.sequences.size(), 3U);
    for (const GeneratedSequence& s : received.sequences)
      EXPECT_EQ(s.ids, same.at({s.request_id, s.sample_index}).ids) << older;
  }
}

TEST_F(ExtensionTest, StopStringsNeedATokenizer) {
  const std::vector<int64_t> ids = {5};
  const std::string stop = "x";
  const mortise_text texts[] = {{stop.data(), stop.size()}};
  mortise_sampling params = sampling();
  params.num_stop_strings = 1;
  params.stop_strings = texts;
  mortise_rollout_request request{};
  request.struct_size = sizeof(request);
  request.prompt_ids = ids.data();
  request.num_prompt_ids = 1;
  request.num_samples = 1;
  request.sampling = &params;
  const mortise_rollout_request* const requests[] = {&request};
  uint64_t accepted = 0;
  EXPECT_EQ(table_->submit(self_, &call_, requests, 1, &accepted), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(call_.text, testing::HasSubstr("tokenizer"));
}

TEST_F(ExtensionTest, ErrorsNameTheRequest) {
  const std::vector<int64_t> ids = {5, 999};
  const mortise_sampling params = sampling();
  mortise_rollout_request request{};
  request.struct_size = sizeof(request);
  request.request_id = 31;
  request.prompt_ids = ids.data();
  request.num_prompt_ids = 2;
  request.num_samples = 1;
  const mortise_rollout_request* const requests[] = {&request};
  uint64_t accepted = 7;
  EXPECT_EQ(table_->submit(self_, &call_, requests, 1, &accepted), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(call_.text, testing::HasSubstr("request 31"));  // no sampling given
  request.sampling = &params;
  EXPECT_EQ(table_->submit(self_, &call_, requests, 1, &accepted), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(call_.text, testing::AllOf(testing::HasSubstr("request 31"), testing::HasSubstr("999")));
  EXPECT_EQ(accepted, 0U);
}

TEST(Extension, NeedsAModel) {
  install_generate_model(nullptr, {});
  mortise_call call;
  void* self = nullptr;
  EXPECT_EQ(generate_extension()->create(&kHost, &call, &self), MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(call.text, testing::HasSubstr("no model"));
}

}  // namespace
}  // namespace mortise
