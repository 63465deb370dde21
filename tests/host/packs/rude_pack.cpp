// A pack whose plugins each break one rule of their slots, written against the C ABI.
//
// Slots are `noexcept` by type. Those that throw are cast there, as a pack in another language could do it.
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "mortise/kinds/environment.h"
#include "mortise/mortise.h"

namespace {

const mortise_host* host = nullptr;
float* data_of(const mortise_tensor* t) { return t == nullptr ? nullptr : static_cast<float*>(mortise_tensor_data(t)); }
mortise_text text_of(const char* s) { return {s, std::strlen(s)}; }

int32_t create(const mortise_host* given, mortise_call*, void** self) noexcept {
  host = given;
  *self = new std::string("state");
  return MORTISE_OK;
}
void destroy(void* self) noexcept { delete static_cast<std::string*>(self); }

int32_t create_fails(const mortise_host* given, mortise_call* call, void**) noexcept {
  return given->fail(call, MORTISE_UNAVAILABLE, text_of("no key given"));
}
int32_t create_throws(const mortise_host*, mortise_call*, void**) {
  throw std::runtime_error("constructor went wrong");
}

// --- policy losses -------------------------------------------------------------------------------------------------
using LossIn = mortise_policy_loss_in;
using LossOut = mortise_policy_loss_out;

template <int32_t (*kBody)(mortise_call*, const LossIn*, LossOut*)>
int32_t loss_slot(void*, mortise_call* call, const LossIn* in, LossOut* out) noexcept {
  return kBody(call, in, out);
}

// -A * log_prob and its gradient; what the others spoil.
int32_t plain(mortise_call*, const LossIn* in, LossOut* out) {
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    data_of(out->loss)[t] = -data_of(in->advantages)[t] * data_of(in->log_prob)[t];
    if (out->grad_log_prob != nullptr)
      data_of(out->grad_log_prob)[t] = -data_of(in->weight)[t] * data_of(in->advantages)[t];
  }
  return MORTISE_OK;
}
int32_t nan_everywhere(mortise_call*, const LossIn* in, LossOut* out) {
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    data_of(out->loss)[t] = std::numeric_limits<float>::quiet_NaN();
    data_of(out->grad_log_prob)[t] = std::numeric_limits<float>::quiet_NaN();
  }
  return MORTISE_OK;
}
int32_t inf_gradient(mortise_call* call, const LossIn* in, LossOut* out) {
  plain(call, in, out);
  if (in->layout->num_tokens > 2) data_of(out->grad_log_prob)[2] = INFINITY;
  return MORTISE_OK;
}
// These two damage memory, unless the host looks (RunKey::check_writes).
int32_t writes_behind(mortise_call* call, const LossIn* in, LossOut* out) {
  plain(call, in, out);
  data_of(out->loss)[in->layout->num_tokens] = 1;
  return MORTISE_OK;
}
int32_t writes_before(mortise_call* call, const LossIn* in, LossOut* out) {
  plain(call, in, out);
  data_of(out->grad_log_prob)[-3] = 1;
  return MORTISE_OK;
}
int32_t nan_masked(mortise_call* call, const LossIn* in, LossOut* out) {
  plain(call, in, out);
  const auto* mask = static_cast<const uint8_t*>(mortise_tensor_data(in->response_mask));
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    if (mask[t] == 0) data_of(out->loss)[t] = data_of(out->grad_log_prob)[t] = NAN;
  }
  return MORTISE_OK;
}
// Writes only the first token.
int32_t leaves_out(mortise_call*, const LossIn*, LossOut* out) {
  data_of(out->loss)[0] = data_of(out->grad_log_prob)[0] = 1;
  return MORTISE_OK;
}
int32_t says_why(mortise_call* call, const LossIn*, LossOut*) {
  return host->fail(call, MORTISE_INVALID_ARGUMENT, text_of("advantages must not be constant"));
}
int32_t bare_code(mortise_call*, const LossIn*, LossOut*) { return MORTISE_DATA_LOSS; }
int32_t odd_code(mortise_call*, const LossIn*, LossOut*) { return 12345; }
int32_t fails_yet_ok(mortise_call* call, const LossIn*, LossOut*) {
  host->fail(call, MORTISE_ABORTED, text_of("half done"));
  return MORTISE_OK;
}
int32_t bad_metric(mortise_call* call, const LossIn* in, LossOut* out) {
  host->metric(call, text_of("rude/x"), 1, 1, 77);
  return plain(call, in, out);
}
int32_t counts(mortise_call* call, const LossIn* in, LossOut* out) {
  host->metric(call, text_of("rude/mean"), 6, 4, MORTISE_REDUCE_MEAN);
  host->metric(call, text_of("rude/max"), 3, 1, MORTISE_REDUCE_MAX);
  return plain(call, in, out);
}
int32_t slow(mortise_call* call, const LossIn* in, LossOut* out) {
  while (host->cancelled(call) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return plain(call, in, out);
}
int32_t checks_views(mortise_call* call, const LossIn* in, LossOut* out) {
  for (const mortise_tensor* t :
       {in->log_prob, in->old_log_prob, in->advantages, in->weight, out->loss, out->grad_log_prob}) {
    if (t == nullptr) continue;  // value only
    const auto address = reinterpret_cast<uintptr_t>(mortise_tensor_data(t));
    if (address % 64 != 0) return host->fail(call, MORTISE_INTERNAL, text_of("not 64-byte aligned"));
    if (t->ndim != 1 || t->shape[0] != in->layout->num_tokens || t->strides == nullptr || t->strides[0] != 1) {
      return host->fail(call, MORTISE_INTERNAL, text_of("not flat and contiguous"));
    }
  }
  for (int64_t i = 0; i < in->layout->num_tokens; ++i) {
    if (data_of(out->loss)[i] != 0) return host->fail(call, MORTISE_INTERNAL, text_of("output not zeroed"));
  }
  return plain(call, in, out);
}
int32_t throws(void*, mortise_call*, const LossIn*, LossOut*) { throw std::out_of_range("index 7"); }
int32_t throws_int(void*, mortise_call*, const LossIn*, LossOut*) { throw 7; }

using LossSlot = int32_t (*)(void*, mortise_call*, const LossIn*, LossOut*) noexcept;
using CreateSlot = int32_t (*)(const mortise_host*, mortise_call*, void**) noexcept;

constexpr mortise_policy_loss_vtable loss_vtable(LossSlot slot) {
  return {sizeof(mortise_policy_loss_vtable), 0, create, destroy, nullptr, slot};
}

// --- state ---------------------------------------------------------------------------------------------------------
int32_t save_state(void* self, mortise_call*, const mortise_state_sink* sink) noexcept {
  const auto& text = *static_cast<std::string*>(self);
  sink->write(sink->context, {text.data(), text.size() / 2});
  sink->write(sink->context, {text.data() + text.size() / 2, text.size() - text.size() / 2});
  return MORTISE_OK;
}
int32_t load_state(void* self, mortise_call* call, mortise_bytes bytes) noexcept {
  if (bytes.size > 100) return host->fail(call, MORTISE_INVALID_ARGUMENT, text_of("too much state"));
  static_cast<std::string*>(self)->assign(static_cast<const char*>(bytes.data), bytes.size);
  return MORTISE_OK;
}
const mortise_state kState = {sizeof(mortise_state), 0, save_state, load_state};
const void* state_extension(void*, const char* id) noexcept {
  return std::strcmp(id, MORTISE_EXT_STATE) == 0 ? &kState : nullptr;
}

// --- rewards -------------------------------------------------------------------------------------------------------
using RewardIn = mortise_reward_in;
using RewardOut = mortise_reward_out;

int32_t inf_reward(void*, mortise_call*, const RewardIn* in, RewardOut* out) noexcept {
  for (int64_t i = 0; i < in->num_rows; ++i) out->rewards[i] = i == 1 ? INFINITY : 0;
  return MORTISE_OK;
}
// Row 0 is scored, row 1 fails after it was written, row 2 does not apply.
int32_t row_fails(void*, mortise_call* call, const RewardIn* in, RewardOut* out) noexcept {
  for (int64_t i = 0; i < in->num_rows; ++i) {
    if (i != 2) out->rewards[i] = 0.5;
  }
  if (in->num_rows > 1) host->fail_row(call, 1, MORTISE_INVALID_ARGUMENT, text_of("cannot parse"));
  out->row_value(out->sink, 0, text_of("length"),
                 static_cast<double>(in->completion.offsets[1] - in->completion.offsets[0]));
  return MORTISE_OK;
}
// As writes_behind.
int32_t reward_behind(void*, mortise_call*, const RewardIn* in, RewardOut* out) noexcept {
  for (int64_t i = 0; i <= in->num_rows; ++i) out->rewards[i] = 0.5;
  return MORTISE_OK;
}
int32_t row_outside(void*, mortise_call* call, const RewardIn* in, RewardOut*) noexcept {
  host->fail_row(call, in->num_rows, MORTISE_INTERNAL, text_of("one too far"));
  return MORTISE_OK;
}

// Host services, as a plugin sees them. In mode `probe`, row i is lane i's first random number as [0,1), summed over a
// parallel_for. Row values have the rest.
struct Sum {
  double total[1024];
};
int32_t probe(void*, mortise_call* call, const RewardIn* in, RewardOut* out) noexcept {
  for (int64_t i = 0; i < in->num_rows; ++i) {
    uint64_t bits[2];
    host->random_u64(call, static_cast<uint64_t>(i), 0, 2, bits);
    out->rewards[i] = static_cast<double>(bits[0] >> 11) * 0x1p-53;
    out->row_value(out->sink, i, text_of("second"), static_cast<double>(bits[1] >> 11) * 0x1p-53);
  }
  auto* const sum = static_cast<Sum*>(host->alloc(call, sizeof(Sum), 64));
  if (sum == nullptr || reinterpret_cast<uintptr_t>(sum) % 64 != 0) return MORTISE_RESOURCE_EXHAUSTED;
  if (host->alloc(call, UINT64_MAX / 2, 64) != nullptr || host->alloc(call, 8, 3) != nullptr) return MORTISE_INTERNAL;
  std::memset(sum, 0, sizeof(Sum));
  host->parallel_for(
      call, 1024, 16,
      [](void* arg, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) static_cast<Sum*>(arg)->total[i] += 1;
      },
      sum);
  double total = 0;
  for (const double x : sum->total) total += x;
  if (in->num_rows > 0) out->row_value(out->sink, 0, text_of("parallel"), total);
  const void* extension = host->get_extension("test.number/1");
  if (in->num_rows > 0 && extension != nullptr)
    out->row_value(out->sink, 0, text_of("extension"), *static_cast<const double*>(extension));
  double f = 0;
  int64_t n = 0;
  if (host->param_f64(call, "absent", &f) != MORTISE_NOT_FOUND || host->param_i64(call, "level", &n) != MORTISE_OK)
    return MORTISE_INTERNAL;
  if (host->param_f64(call, "level", &f) != MORTISE_INVALID_ARGUMENT) return MORTISE_INTERNAL;
  mortise_text mode{};
  int32_t flag = 0;
  if (host->param_text(call, "mode", &mode) != MORTISE_OK || host->param_bool(call, "flag", &flag) != MORTISE_OK)
    return MORTISE_INTERNAL;
  double unset = 0;
  if (host->param_f64(call, "unset", &unset) != MORTISE_OK || !std::isnan(unset)) return MORTISE_INTERNAL;
  if (in->num_rows > 0)
    out->row_value(out->sink, 0, text_of("params"),
                   static_cast<double>(n) + 10 * flag + 100 * static_cast<double>(mode.size));
  return MORTISE_OK;
}

constexpr mortise_reward_vtable reward_vtable(int32_t (*slot)(void*, mortise_call*, const RewardIn*,
                                                              RewardOut*) noexcept) {
  return {sizeof(mortise_reward_vtable), 0, create, destroy, nullptr, MORTISE_REWARD_ROW, 0, slot};
}

// --- environments --------------------------------------------------------------------------------------------------
// The text of a turn says what the environment does with it.
int32_t answer_as_told(void*, mortise_call* call, const mortise_episode_action* const* actions, uint64_t num_actions,
                       const mortise_observation_sink* sink) noexcept {
  for (uint64_t i = 0; i < num_actions; ++i) {
    const std::string_view told(actions[i]->text.data, actions[i]->text.size);
    mortise_observation out{};
    out.struct_size = sizeof out;
    out.episode = told == "another" ? 4711 : actions[i]->episode;
    out.reward = told == "infinite" ? std::numeric_limits<double>::infinity() : 0.5;
    if (told == "fail") host->fail_row(call, static_cast<int64_t>(i), MORTISE_INVALID_ARGUMENT, text_of("as told"));
    if (told == "silent") continue;
    sink->observation(sink->context, &out);
    out.reward = 1.0;
    if (told == "twice") sink->observation(sink->context, &out);
  }
  return MORTISE_OK;
}
constexpr mortise_environment_vtable kAnswers = {
    sizeof(mortise_environment_vtable), 0, create, destroy, nullptr, 0, 0, nullptr, nullptr, answer_as_told, nullptr};

// --- KL, advantages ------------------------------------------------------------------------------------------------
int32_t constant_kl(void*, mortise_call*, const mortise_kl_estimator_in* in, mortise_kl_estimator_out* out) noexcept {
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    data_of(out->kl)[t] = 0.25F;
    if (out->grad_log_prob != nullptr) data_of(out->grad_log_prob)[t] = 99;
  }
  return MORTISE_OK;
}
int32_t needs_values(void*, mortise_call*, const mortise_advantage_estimator_in* in,
                     mortise_advantage_estimator_out* out) noexcept {
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    data_of(out->advantages)[t] = data_of(in->values)[t];
    data_of(out->returns)[t] =
        in->rewards == nullptr ? 0 : data_of(in->rewards)[0] * static_cast<float>(in->rewards->shape[1]);
  }
  return MORTISE_OK;
}

// --- tables --------------------------------------------------------------------------------------------------------
const mortise_policy_loss_vtable kPlain = loss_vtable(loss_slot<plain>), kNan = loss_vtable(loss_slot<nan_everywhere>),
                                 kInf = loss_vtable(loss_slot<inf_gradient>),
                                 kBehind = loss_vtable(loss_slot<writes_behind>),
                                 kBefore = loss_vtable(loss_slot<writes_before>),
                                 kMasked = loss_vtable(loss_slot<nan_masked>),
                                 kLeavesOut = loss_vtable(loss_slot<leaves_out>),
                                 kWhy = loss_vtable(loss_slot<says_why>), kBare = loss_vtable(loss_slot<bare_code>),
                                 kOdd = loss_vtable(loss_slot<odd_code>), kYet = loss_vtable(loss_slot<fails_yet_ok>),
                                 kMetric = loss_vtable(loss_slot<bad_metric>), kCounts = loss_vtable(loss_slot<counts>),
                                 kSlow = loss_vtable(loss_slot<slow>), kViews = loss_vtable(loss_slot<checks_views>),
                                 kThrows = loss_vtable(reinterpret_cast<LossSlot>(throws)),
                                 kThrowsInt = loss_vtable(reinterpret_cast<LossSlot>(throws_int)),
                                 kEmpty = loss_vtable(nullptr);
const mortise_policy_loss_vtable kCreateFails = {sizeof(kCreateFails), 0, create_fails, destroy, nullptr,
                                                 loss_slot<plain>};
const mortise_policy_loss_vtable kCreateThrows = {
    sizeof(kCreateThrows), 0, reinterpret_cast<CreateSlot>(create_throws), destroy, nullptr, loss_slot<plain>};
const mortise_policy_loss_vtable kStateful = {sizeof(kStateful), 0, create, destroy, state_extension, loss_slot<plain>};
const mortise_reward_vtable kInfReward = reward_vtable(inf_reward), kRowFails = reward_vtable(row_fails),
                            kRowOutside = reward_vtable(row_outside), kRewardBehind = reward_vtable(reward_behind),
                            kProbe = reward_vtable(probe);
const mortise_kl_estimator_vtable kConstantKl = {sizeof(kConstantKl), 0, create, destroy, nullptr, constant_kl};
const mortise_advantage_estimator_vtable kNeedsValues = {sizeof(kNeedsValues), 0, create, destroy, nullptr,
                                                         needs_values};

const char* const kModes[] = {"slow", "fast"};
const mortise_param kLevel = {
    sizeof(mortise_param), MORTISE_PARAM_I64, "level", "3", "how much", 1, 9, 1, 0, nullptr, 0, 0};
const mortise_param kMode = {
    sizeof(mortise_param), MORTISE_PARAM_TEXT, "mode", "slow", "how", 0, 0, 0, 2, kModes, 0, 0};
const mortise_param kFlag = {
    sizeof(mortise_param), MORTISE_PARAM_BOOL, "flag", "false", "whether", 0, 0, 0, 0, nullptr, 0, 0};
const mortise_param kUnset = {
    sizeof(mortise_param), MORTISE_PARAM_F64, "unset", "none", "maybe", 0, 1, 1, 0, nullptr, 0, 0};
const mortise_param kMust = {
    sizeof(mortise_param), MORTISE_PARAM_F64, "must", nullptr, "has no default", 0, 0, 0, 0, nullptr, 0, 0};
const mortise_param* const kProbeParams[] = {&kLevel, &kMode, &kFlag, &kUnset};
const mortise_param* const kMustParams[] = {&kMust};
const char* const kValues[] = {"values", nullptr};

constexpr mortise_descriptor describe(const char* kind, const char* name, const void* vtable) {
  return {sizeof(mortise_descriptor),
          0,
          kind,
          name,
          "rude",
          nullptr,
          MORTISE_COUPLING_TOKEN,
          0,
          nullptr,
          nullptr,
          nullptr,
          vtable,
          nullptr,
          nullptr};
}
constexpr mortise_descriptor loss(const char* name, const mortise_policy_loss_vtable* v) {
  return describe(MORTISE_KIND_POLICY_LOSS, name, v);
}
constexpr mortise_descriptor flagged(mortise_descriptor d, uint32_t flags) {
  d.flags = flags;
  return d;
}
constexpr mortise_descriptor with_params(mortise_descriptor d, uint32_t n, const mortise_param* const* p) {
  d.num_params = n;
  d.params = p;
  return d;
}
constexpr mortise_descriptor requiring(mortise_descriptor d, const char* const* names) {
  d.requires_inputs = names;
  return d;
}

const mortise_descriptor kAll[] = {
    loss("plain", &kPlain),
    loss("nan_everywhere", &kNan),
    loss("inf_gradient", &kInf),
    loss("writes_behind", &kBehind),
    loss("writes_before", &kBefore),
    loss("nan_masked", &kMasked),
    loss("leaves_out", &kLeavesOut),
    flagged(loss("says_it_writes_all", &kLeavesOut), MORTISE_FLAG_WRITES_ALL),
    loss("says_why", &kWhy),
    loss("bare_code", &kBare),
    loss("odd_code", &kOdd),
    loss("fails_yet_ok", &kYet),
    loss("bad_metric", &kMetric),
    loss("counts", &kCounts),
    loss("slow", &kSlow),
    loss("checks_views", &kViews),
    loss("throws", &kThrows),
    loss("throws_int", &kThrowsInt),
    loss("empty", &kEmpty),
    loss("create_fails", &kCreateFails),
    loss("create_throws", &kCreateThrows),
    loss("stateful", &kStateful),
    with_params(loss("must", &kPlain), 1, kMustParams),
    describe(MORTISE_KIND_REWARD, "inf_reward", &kInfReward),
    describe(MORTISE_KIND_REWARD, "row_fails", &kRowFails),
    describe(MORTISE_KIND_REWARD, "row_outside", &kRowOutside),
    describe(MORTISE_KIND_REWARD, "reward_behind", &kRewardBehind),
    with_params(describe(MORTISE_KIND_REWARD, "probe", &kProbe), 4, kProbeParams),
    describe(MORTISE_KIND_ENVIRONMENT, "answers", &kAnswers),
    describe(MORTISE_KIND_KL_ESTIMATOR, "constant", &kConstantKl),
    requiring(describe(MORTISE_KIND_ADVANTAGE_ESTIMATOR, "needs_values", &kNeedsValues), kValues)};
constexpr uint32_t kCount = sizeof(kAll) / sizeof(kAll[0]);

struct Pointers {
  const mortise_descriptor* all[kCount];
};
constexpr Pointers make_pointers() {
  Pointers out{};
  for (uint32_t i = 0; i < kCount; ++i) out.all[i] = &kAll[i];
  return out;
}
constexpr Pointers kPointers = make_pointers();

}  // namespace

extern "C" MORTISE_EXPORT const mortise_pack mortise_pack_v1 = {
    sizeof(mortise_pack), 1, 1, kCount, "test.rude", "1.0.0", kPointers.all, nullptr};
