// The C++ layer through the ABI: parameter tables, errors as status, registration, both packs' notes.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "plugins/loss_call.h"
#include "plugins/reward_call.h"
#include "support/this_build.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

std::string path_of(const std::string& pack) {
  return std::string(MORTISE_BINARY_DIR) + "/tests/sdk_packs/" + pack + ".so";
}
const mortise_descriptor* sample(const char* kind, const std::string& name) {
  return find_plugin(load_pack(path_of("test.sample")), kind, name);
}
const mortise_param* param(const mortise_descriptor* d, const std::string& name) {
  for (uint32_t i = 0; i < d->num_params; ++i) {
    if (d->params[i]->name == name) return d->params[i];
  }
  throw std::runtime_error("no parameter " + name);
}

TEST(ParamTable, IsWhatTheClassReads) {
  const mortise_descriptor* d = sample(MORTISE_KIND_REWARD, "params");
  EXPECT_EQ(d->num_params, 8U);
  EXPECT_STREQ(param(d, "share")->default_text, "0.2");
  EXPECT_EQ(param(d, "share")->has_range, 1);
  EXPECT_EQ(param(d, "share")->max, 1.0);
  EXPECT_STREQ(param(d, "unset")->default_text, "none");
  EXPECT_EQ(param(d, "unset")->max, INFINITY);
  EXPECT_EQ(param(d, "rate")->min, 5e-324) << "the next number above 0";
  EXPECT_EQ(param(d, "rate")->max, std::nextafter(1.0, 0.0));
  EXPECT_EQ(param(d, "rows")->min, 1.0) << "the next whole number above 0";
  EXPECT_EQ(param(d, "rows")->max, INFINITY);
  EXPECT_STREQ(param(d, "count")->default_text, "3");
  EXPECT_EQ(param(d, "count")->type, MORTISE_PARAM_I64);
  EXPECT_STREQ(param(d, "flag")->default_text, "true");
  EXPECT_EQ(param(d, "mode")->num_choices, 2U);
  EXPECT_STREQ(param(d, "mode")->choices[1], "hard");
  EXPECT_EQ(param(d, "must")->default_text, nullptr);
  EXPECT_EQ(d->flags, MORTISE_FLAG_EXPERIMENTAL | MORTISE_FLAG_NEEDS_NETWORK);
  EXPECT_STREQ(d->requires_inputs[1], "ref_log_prob");
  EXPECT_EQ(d->requires_inputs[2], nullptr);
  EXPECT_STREQ(d->consumes[0], "rollout_is_weights");
}

TEST(ParamTable, ValuesReachTheInstance) {
  const auto* d = sample(MORTISE_KIND_REWARD, "params");
  RewardCall plain(d, {{"must", "0.5"}});
  EXPECT_DOUBLE_EQ(plain.score({{"x"}, {}, {}, {}, 0})[0], 0.2 + 3 + 100 + 0.5);
  RewardCall set(d,
                 {{"must", "0"}, {"share", "1"}, {"unset", "7"}, {"count", "-2"}, {"flag", "false"}, {"mode", "hard"}});
  EXPECT_DOUBLE_EQ(set.score({{"x"}, {}, {}, {}, 0})[0], 1 + 7 - 2 + 1000);
  RewardCall missing(d);
  EXPECT_EQ(missing.plugin.status, MORTISE_NOT_FOUND);
  EXPECT_THAT(missing.plugin.call.error, HasSubstr("'must'"));
}

TEST(Errors, BecomeStatusAndText) {
  const auto* d = sample(MORTISE_KIND_REWARD, "throws");
  const std::vector<std::tuple<std::string, int32_t, std::string>> cases = {
      {"failure", MORTISE_UNAVAILABLE, "closed today"},
      {"text", MORTISE_INTERNAL, "plain text"},
      {"alloc", MORTISE_RESOURCE_EXHAUSTED, "out of memory"},
      {"number", MORTISE_UNKNOWN, "not a std::exception"}};
  for (const auto& [what, code, text] : cases) {
    RewardCall call(d, {{"what", what}});
    EXPECT_EQ(call.plugin.status, code) << what;
    EXPECT_THAT(call.plugin.call.error, HasSubstr(text));
    EXPECT_EQ(call.plugin.self, nullptr);
  }
  RewardCall rows(d);
  const auto got = rows.score({{"good", "bad", "good"}, {}, {}, {}, 0});
  EXPECT_EQ(rows.status, MORTISE_OK);
  EXPECT_EQ(got[0], 0.5);
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_EQ(got[2], 0.5);
  EXPECT_EQ(rows.plugin.call.failed_rows.at(1).text, "cannot score this");
}

TEST(Errors, OfATokenLossCrossNoThread) {
  PolicyLoss plugin(sample(MORTISE_KIND_POLICY_LOSS, "token_throws"));
  plugin.call.threads = 2;
  LossInput in;
  in.row_offsets = {0, 40000, 80000};
  in.mask.assign(80000, 1);
  in.log_prob.assign(80000, -1), in.old_log_prob = in.weight = in.advantages = in.log_prob;
  in.advantages[70000] = 13;
  EXPECT_THROW(compute(plugin, in), std::runtime_error);
  EXPECT_EQ(plugin.call.code, MORTISE_INTERNAL);
  EXPECT_EQ(plugin.call.error, "thirteen");
}

TEST(BatchReward, SeesAllRows) {
  RewardCall call(sample(MORTISE_KIND_REWARD, "group_mean"));
  EXPECT_EQ(call.plugin.vtable->granularity, MORTISE_REWARD_GROUP);
  EXPECT_EQ(call.score({{"a", "b", "c"}, {}, {}, {}, 0}), (std::vector<double>{3, 3, 3}));
}

TEST(TokenLoss, WithoutMetricsIsAFewLines) {
  PolicyLoss plugin(sample(MORTISE_KIND_POLICY_LOSS, "clip"), {{"clip_ratio", "0.5"}});
  LossInput in;
  in.row_offsets = {0, 2};
  in.old_log_prob = {0, 0}, in.log_prob = {1, 0.25F}, in.advantages = {2, 2}, in.weight = {1, 0.5F}, in.mask = {1, 1};
  const LossOutput out = compute(plugin, in);
  EXPECT_FLOAT_EQ(out.loss[0], -3.0F);
  EXPECT_EQ(out.grad[0], 0.0F);
  EXPECT_FLOAT_EQ(out.grad[1], float(-std::exp(0.25)));
  EXPECT_TRUE(plugin.call.metrics.empty());
}

// Rows around the lengths at which the loop over tokens changes its step, holes in their masks, rubbish in the holes:
// loss, gradient and every kind of average are those of one plain loop.
TEST(TokenLoss, OfRowsOfAnyLengthIsThePlainLoop) {
  LossInput in;
  for (const int64_t length : {300, 1, 0, 15, 16, 17, 255, 256, 257, 3, 531, 32, 33})
    in.row_offsets.push_back(in.row_offsets.back() + length);
  const auto n = size_t(in.num_tokens());
  std::map<std::string, double> wanted{{"gap/lowest_row", 1e9},
                                       {"gap/highest_row", -1e9},
                                       {"gap/lowest", 1e9},
                                       {"gap/highest", -1e9},
                                       {"up/lowest_row", 1e9}};
  double tokens = 0, ups = 0, gaps = 0, row_means = 0, row_ups = 0;
  for (size_t t = 0; t < n; ++t) {
    const bool on = t * 7 % 5 != 3;
    in.mask.push_back(on ? 1 : 0);
    in.old_log_prob.push_back(-1.0F - float(t % 17) / 16);
    in.log_prob.push_back(on ? -1.0F - float(t * 5 % 23) / 16 : std::nanf(""));
    in.advantages.push_back(float(t % 3) - 1.25F);
    in.weight.push_back(t % 11 == 0 ? 0.0F : 0.5F);
  }
  for (size_t row = 0; row + 1 < in.row_offsets.size(); ++row) {
    double sum = 0, up = 0, count = 0;
    for (auto t = size_t(in.row_offsets[row]); t < size_t(in.row_offsets[row + 1]); ++t) {
      if (in.mask[t] == 0) continue;
      const double gap = double(in.log_prob[t]) - double(in.old_log_prob[t]);
      sum += gap, up += gap > 0, count += 1;
      wanted["gap/lowest"] = std::min(wanted["gap/lowest"], gap);
      wanted["gap/highest"] = std::max(wanted["gap/highest"], gap);
    }
    tokens += count, gaps += sum, ups += up;
    const double mean = count > 0 ? sum / count : 0;
    row_means += mean, row_ups += count > 0 ? up / count : 0;
    wanted["gap/lowest_row"] = std::min(wanted["gap/lowest_row"], mean);
    wanted["gap/highest_row"] = std::max(wanted["gap/highest_row"], mean);
    wanted["up/lowest_row"] = std::min(wanted["up/lowest_row"], count > 0 ? up / count : 0);
  }
  wanted["gap/tokens"] = gaps / tokens;
  wanted["gap/rows"] = row_means / double(in.num_rows());
  wanted["up/tokens"] = ups / tokens;
  wanted["gap_and_up/tokens"] = (gaps + ups) / tokens;
  wanted["gap_and_up/rows"] = (row_means + row_ups) / double(in.num_rows());

  for (const char* name : {"metered", "metered_single"}) {
    PolicyLoss plugin(sample(MORTISE_KIND_POLICY_LOSS, name));
    const LossOutput out = compute(plugin, in);
    for (size_t t = 0; t < n; ++t) {
      const bool on = in.mask[t] != 0;
      const double gap = double(in.log_prob[t]) - double(in.old_log_prob[t]);
      ASSERT_EQ(out.loss[t], on ? float(gap * double(in.advantages[t])) : 0.0F) << name << ' ' << t;
      ASSERT_EQ(out.grad[t], on ? in.weight[t] * in.advantages[t] : 0.0F) << name << ' ' << t;
    }
    ASSERT_EQ(plugin.call.metrics.size(), wanted.size());
    for (const auto& [metric_name, value] : wanted) {
      const auto& metric = plugin.call.metrics.at(metric_name);
      EXPECT_NEAR(metric.reduction == MORTISE_REDUCE_MEAN ? metric.mean() : metric.sum, value, 1e-12)
          << name << ' ' << metric_name;
    }
  }
}

// Ten million float32 numbers of one size added up in float32 would be off by a percent; sums of metrics are not.
TEST(TokenLoss, MetricsOfFloat32LossesAreSumsInDouble) {
  const int64_t kTokens = kSanitized ? 100'000 : 3'000'000;  // numbers show nothing new under a sanitizer
  LossInput in;
  in.row_offsets = {0, kTokens, kTokens + 1};
  const auto n = size_t(in.num_tokens());
  in.mask.assign(n, 1), in.old_log_prob.assign(n, 0.0F), in.advantages.assign(n, 1.0F), in.weight.assign(n, 1.0F);
  in.log_prob.assign(n, 0.1F);
  PolicyLoss plugin(sample(MORTISE_KIND_POLICY_LOSS, "metered_single"));
  compute(plugin, in);
  EXPECT_NEAR(plugin.call.metrics.at("gap/tokens").mean() / double(0.1F), 1.0, 2e-7);
}

TEST(SequenceLoss, RowGradientIsTheDifferenceQuotient) {
  PolicyLoss plugin(sample(MORTISE_KIND_POLICY_LOSS, "row_ratio"));
  EXPECT_EQ(plugin.call.plugin->coupling, MORTISE_COUPLING_ROW);
  LossInput in;
  in.row_offsets = {0, 4, 7};
  in.old_log_prob = {-1, -2, -3, -1, 0, -1, -2};
  in.log_prob = {-1.5F, -1.75F, -3, -0.5F, -1, -1, -1};
  in.advantages = {1, 2, -1, 0.5F, 1, -3, 2};
  in.weight = {0.1F, 0.2F, 0.3F, 0.4F, 1, 2, 3};
  in.mask = {1, 0, 1, 1, 1, 1, 1};
  const LossOutput at = compute(plugin, in);
  for (size_t i = 0; i < in.mask.size(); ++i) {
    LossInput up = in, down = in;
    up.log_prob[i] += 0.03125F;
    down.log_prob[i] -= 0.03125F;
    const double slope = (compute(plugin, up).total - compute(plugin, down).total) / 0.0625;
    EXPECT_NEAR(at.grad[i], slope, 2e-4 * (1 + std::abs(slope))) << i;
  }
}

// The note's JSON, found as the host finds it: through PT_NOTE.
nlohmann::json note_of(const std::string& pack) {
  std::ifstream file(path_of(pack), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  for (int i = 0; i < header->e_phnum; ++i) {
    const auto* segment =
        reinterpret_cast<const Elf64_Phdr*>(bytes.data() + header->e_phoff + size_t(i) * header->e_phentsize);
    if (segment->p_type != PT_NOTE) continue;
    for (size_t at = segment->p_offset; at + sizeof(Elf64_Nhdr) <= segment->p_offset + segment->p_filesz;) {
      const auto* note = reinterpret_cast<const Elf64_Nhdr*>(bytes.data() + at);
      const char* name = bytes.data() + at + sizeof *note;
      const char* text = name + (note->n_namesz + 3) / 4 * 4;
      if (std::string_view(name, note->n_namesz) == std::string_view("Mortise\0", 8) && note->n_type == 1) {
        return nlohmann::json::parse(text, text + note->n_descsz);
      }
      at = size_t(text - bytes.data()) + (note->n_descsz + 3) / 4 * 4;
    }
  }
  throw std::runtime_error(pack + " has no note");
}

// MORTISE_PACK(A B ...): the table has them all, in order, and so has the note (below).
TEST(Pack, HoldsEveryPluginOfItsMacro) {
  const mortise_pack* pack = load_pack(path_of("test.sample"));
  std::vector<std::string> names;
  for (uint32_t i = 0; i < pack->num_plugins; ++i) names.emplace_back(pack->plugins[i]->name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("holder", "forgetful", "params", "throws", "group_mean", "clip",
                                                   "metered", "metered_single", "row_ratio", "ratio_k3", "token_throws",
                                                   "steps", "echo", "cell"));
}

TEST(Note, SaysWhatTheTableSays) {
  const nlohmann::json note = note_of("test.sample");
  EXPECT_EQ(note["abi"], MORTISE_ABI_MAJOR);
  EXPECT_EQ(note["pack"]["id"], "test.sample_id");
  EXPECT_EQ(note["pack"]["version"], "1.2.3-rc.1");
  EXPECT_EQ(note["needs"], nlohmann::json::array({"libm.so.6"}));
  EXPECT_THAT(note["build"]["compiler"].get<std::string>(), Not(testing::IsEmpty()));
  const mortise_pack* pack = load_pack(path_of("test.sample"));
  ASSERT_EQ(note["plugins"].size(), pack->num_plugins);
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    const mortise_descriptor* d = pack->plugins[i];
    const nlohmann::json& said = note["plugins"][i];
    EXPECT_EQ(said["name"], d->name);
    EXPECT_EQ(said["kind"], d->kind);
    EXPECT_EQ(said["summary"], d->summary);
    EXPECT_EQ(said["flags"], d->flags);
    ASSERT_EQ(said["params"].size(), d->num_params);
    for (uint32_t k = 0; k < d->num_params; ++k) EXPECT_EQ(said["params"][k]["name"], d->params[k]->name);
    if (said["name"] != "params") continue;
    EXPECT_EQ(said["doc"], "line one\nline two \\ backslash");
    EXPECT_EQ(said["requires"], nlohmann::json::array({"values", "ref_log_prob"}));
    EXPECT_EQ(said["params"][0]["max"], 1.0);
    EXPECT_FALSE(said["params"][1].contains("max"));
    EXPECT_EQ(said["params"][4]["choices"], nlohmann::json::array({"soft", "hard"}));
    EXPECT_EQ(said["params"][5]["min"], 5e-324) << "the note keeps the smallest number above 0";
    EXPECT_TRUE(said["params"][7]["default"].is_null());
  }
}

TEST(CPack, WorksWithoutTheCppLayer) {
  EXPECT_EQ(note_of("test.c")["plugins"][0]["name"], "bytes");
  RewardCall call(find_plugin(load_pack(path_of("test.c")), MORTISE_KIND_REWARD, "bytes"));
  EXPECT_EQ(call.score({{"abc", ""}, {}, {}, {}, 0}), (std::vector<double>{3, 0}));
}

// --- weights ---------------------------------------------------------------------------------------------------------

using Backend = Instance<mortise_rollout_backend_vtable>;

struct Ids {
  std::vector<std::vector<int64_t>> all;
  int64_t version = -1;
  static int32_t take(void* context, const mortise_rollout_sequence* s) noexcept {
    auto& ids = *static_cast<Ids*>(context);
    ids.all.emplace_back(s->ids, s->ids + s->num_ids);
    ids.version = s->weight_version;
    return 0;
  }
};

int32_t give_weight(Backend& b, const char* name, std::vector<float> values, int64_t whole) {
  int64_t shape = int64_t(values.size()), stride = 1, offset = 0;
  const mortise_tensor block{values.data(), MORTISE_CPU, 0, 1, MORTISE_FLOAT, 32, 1, &shape, &stride, 0};
  return b.vtable->update_weight(b.self, &b.call, {name, std::strlen(name)}, &block, &whole, &offset);
}

TEST(Weights, ReachABackendThatHoldsThem) {
  Backend b(sample(MORTISE_KIND_ROLLOUT_BACKEND, "holder"));
  ASSERT_EQ(b.vtable->set_version(b.self, &b.call, 4), MORTISE_OK);
  mortise_rollout_request request{};
  request.struct_size = sizeof request;
  request.num_samples = 2;
  const mortise_rollout_request* const list[] = {&request};
  uint64_t accepted = 0, outstanding = 0;
  EXPECT_EQ(b.vtable->submit(b.self, &b.call, list, 1, &accepted), MORTISE_FAILED_PRECONDITION) << "no weights yet";

  ASSERT_EQ(b.vtable->begin_update(b.self, &b.call, 4), MORTISE_OK);
  EXPECT_EQ(give_weight(b, "first", {1, 2, -5}, 3), MORTISE_OK);  // |1| + |2| + |-5| = 8
  EXPECT_EQ(give_weight(b, "second", {6}, 1), MORTISE_OK);
  EXPECT_EQ(give_weight(b, "refused", {1}, 1), MORTISE_INVALID_ARGUMENT);
  EXPECT_THAT(b.call.error, HasSubstr("no place for it"));
  EXPECT_EQ(give_weight(b, "half", {1}, 2), MORTISE_UNIMPLEMENTED);
  EXPECT_THAT(b.call.error, HasSubstr("half: whole weights only"));
  ASSERT_EQ(b.vtable->end_update(b.self, &b.call), MORTISE_OK);

  ASSERT_EQ(b.vtable->submit(b.self, &b.call, list, 1, &accepted), MORTISE_OK);
  Ids ids;
  const mortise_rollout_sink sink{sizeof sink, 0, &ids, &Ids::take};
  ASSERT_EQ(b.vtable->poll(b.self, &b.call, &sink, 0, &outstanding), MORTISE_OK);
  EXPECT_EQ(outstanding, 0U);
  EXPECT_EQ(ids.all, (std::vector<std::vector<int64_t>>{{3, 1}, {3, 1}}));
  EXPECT_EQ(ids.version, 4);
}

TEST(Weights, ABackendWithoutThemHasNoSlots) {
  const auto* vtable =
      static_cast<const mortise_rollout_backend_vtable*>(sample(MORTISE_KIND_ROLLOUT_BACKEND, "forgetful")->vtable);
  EXPECT_EQ(vtable->begin_update, nullptr);
  EXPECT_EQ(vtable->update_weight, nullptr);
  EXPECT_EQ(vtable->end_update, nullptr);
  EXPECT_NE(vtable->submit, nullptr);
}

}  // namespace
}  // namespace mortise::test
