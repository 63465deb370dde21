// A step that chooses among the groups that it samples: those that stay keep what the engine has computed of them, and others
// take the slots of those that are dropped.
#include "unit/generate/sampled_rows.h"

namespace mortise {
namespace {

constexpr int64_t kGroupSlots = 50 + kSamples * 23;

// What the engine samples for the requests, whose rows have ids from `first_row` on.
Sequences sample_batch(GenerateEngine& engine, std::vector<GenerateRequest> requests, int64_t first_row) {
  for (GenerateRequest& request : requests) {
    request.first_row_id = first_row;
    first_row += request.num_samples;
  }
  return run_all(engine, requests);
}

void append(Rows& to, const GenerateRequest& request, const Sequences& sampled) {
  to.requests.push_back(request);
  for (int64_t i = 0; i < kSamples; ++i) to.responses.push_back(sampled.at({request.request_id, i}).ids);
}

std::vector<int64_t> rows_of_groups(const std::vector<int64_t>& first_rows) {
  std::vector<int64_t> out;
  for (const int64_t first : first_rows) {
    for (int64_t i = 0; i < kSamples; ++i) out.push_back(first < 0 ? -1 : first + i);
  }
  return out;
}

// Three batches of five groups are sampled, with slots for eight groups. The step learns four: one of an earlier step, and one of
// each batch.
TEST(SampledGroups, RowsThatStayHaveTheirNumbers) {
  Model model = tiny_model();
  const std::vector<GenerateRequest> requests = requests_of(model.config(), false);
  model.keep_sampled_forward(std::make_shared<SampledForward>(model.config(), 8 * kGroupSlots, kGroupSlots));
  SampledForward& store = *model.sampled_forward();
  EngineOptions options;
  options.keeps_forward = true;
  options.max_num_seqs = 4;
  const auto engine = make_engine(model, options);
  const Sequences earlier = sample_batch(*engine, requests, 900);  // the store is not open
  constexpr int64_t kBatch = kRequests * kSamples;
  store.begin(requests.front().seed, requests.front().step);
  const Sequences first = sample_batch(*engine, requests, 0);
  store.end();
  store.keep_rows(rows_of_groups({-1, 1 * kSamples, 3 * kSamples}));
  store.go_on();
  const Sequences second = sample_batch(*engine, requests, kBatch);
  store.end();
  store.keep_rows(rows_of_groups({-1, 1 * kSamples, 3 * kSamples, kBatch + 4 * kSamples}));
  EXPECT_TRUE(store.has_row(3 * kSamples));
  EXPECT_FALSE(store.has_row(0));
  EXPECT_FALSE(store.has_row(kBatch));
  store.go_on();
  const Sequences third = sample_batch(*engine, requests, 2 * kBatch);
  store.end();
  store.number_rows(rows_of_groups({-1, 1 * kSamples, kBatch + 4 * kSamples, 2 * kBatch + 1 * kSamples}));
  Rows rows;
  append(rows, requests[2], earlier);
  append(rows, requests[1], first);
  append(rows, requests[4], second);
  append(rows, requests[1], third);
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < 4 * kSamples; ++id) {
    ids.push_back(id);
    EXPECT_EQ(store.has_row(id), id >= kSamples) << id;
  }
  const std::vector<GivenRow> given = rows.given();
  const auto filled = fill_sampled_forward(model, std::span(given).first(kSamples), Isa::kAuto, 2);
  ASSERT_TRUE(filled.ok()) << filled.error().to_string();
  Model other = tiny_model();
  keep(other);
  ASSERT_TRUE(fill_sampled_forward(other, given, Isa::kAuto, 2).ok());
  for (const auto& [cut, shares] : std::vector<std::pair<std::vector<int64_t>, bool>>{
           {ids, true}, {{9, 10, 11}, true}, {{4, 1, 10}, false}, {{3, 4, 5, 6, 7, 8}, true}}) {
    const PackedBatch packed = pack(rows, cut, shares);
    const auto got = pass_of(model, packed, cut), want = pass_of(other, packed, cut);
    ASSERT_TRUE(got != nullptr && want != nullptr);
    expect_same_bits(*got, *want, model.config().num_layers, "groups");
  }
}

// Also while there are free groups.
TEST(SampledGroups, ALongerGroupGetsNoSlots) {
  SampledForward store(tiny_model().config(), 2 * kGroupSlots, kGroupSlots);
  store.begin(17, 1);
  ASSERT_EQ(store.take(kGroupSlots), 0);
  store.keep_rows({});
  EXPECT_EQ(store.take(kGroupSlots + 1), std::nullopt);
  EXPECT_EQ(store.take(kGroupSlots), 0);
}

// A step takes groups of earlier steps alone, and no update has come between: nobody has forgotten the rows.
TEST(SampledGroups, OtherPromptsMayBeFilledAfterGroupsGetOtherNumbers) {
  Model model = tiny_model(), other = tiny_model();
  const std::vector<GenerateRequest> requests = requests_of(model.config(), false);
  const Sequences sampled = sample_batch(*make_engine(model), requests, 0);
  model.keep_sampled_forward(std::make_shared<SampledForward>(model.config(), 2 * kGroupSlots, kGroupSlots));
  model.sampled_forward()->begin_filled();
  const std::vector<int64_t> ids{0, 1, 2};
  for (const size_t group : {size_t{1}, size_t{0}, size_t{3}}) {  // their prompts have 37, 1 and 20 tokens
    model.sampled_forward()->number_rows(rows_of_groups({-1}));
    Rows rows;
    append(rows, requests[group], sampled);
    ASSERT_TRUE(fill_sampled_forward(model, rows.given(), Isa::kAuto, 2).ok());
    keep(other);
    ASSERT_TRUE(fill_sampled_forward(other, rows.given(), Isa::kAuto, 2).ok());
    const PackedBatch packed = pack(rows, ids);
    const auto got = pass_of(model, packed, ids), want = pass_of(other, packed, ids);
    ASSERT_TRUE(got != nullptr && want != nullptr);
    expect_same_bits(*got, *want, model.config().num_layers, "group " + std::to_string(group));
  }
}

// A new step forgets which groups were free.
TEST(SampledGroups, ANewStepHasAllSlots) {
  Model model = tiny_model();
  const std::vector<GenerateRequest> requests = requests_of(model.config(), true);
  model.keep_sampled_forward(std::make_shared<SampledForward>(model.config(), kRequests * kGroupSlots, kGroupSlots));
  SampledForward& store = *model.sampled_forward();
  EngineOptions options;
  options.keeps_forward = true;
  const auto engine = make_engine(model, options);
  for (int repeat = 0; repeat < 3; ++repeat) {
    store.begin(requests.front().seed, requests.front().step);
    (void)sample_batch(*engine, requests, 0);
    store.end();
    store.number_rows(rows_of_groups({3, 9}));
    EXPECT_TRUE(store.has_row(5));
    EXPECT_FALSE(store.has_row(9));
  }
}

}  // namespace
}  // namespace mortise
