// See run_attention.h.
#include "train/run/run_attention.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "foundation/base/choice.h"
#include "foundation/base/log.h"
#include "foundation/base/shown_text.h"
#include "foundation/formats/json.h"
#include "model/layers/sequence.h"
#include "train/loop/decision.h"

namespace mortise {
namespace {

constexpr const char* kKey = "model.attention_backend";
constexpr std::string_view kStage = "choosing the code of attention";

// A call to try for each class.
struct Call {
  AttentionShape shape;
  int64_t longest = 0;
};
using Calls = std::map<AttentionClass, Call>;

void add_calls(const AttendingModel& model, int64_t longest, Calls& calls, bool& leaves_layers) {
  const ModelConfig& config = model.config;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    AttentionShape shape{config.num_heads, config.num_kv_heads, config.head_dim, config.score_scale()};
    shape.softcap = config.attention_softcap;
    if (!has_cudnn_attention(shape) || config.attention_sinks) {
      leaves_layers = true;
      return;  // the same in all layers
    }
    if (model.num_ranks > 1) shape = shape_on_rank(shape, 0, model.num_ranks);
    int64_t keys = 0;
    do {
      // The longest calls of the class.
      keys = std::min(longest, attention_class(shape, keys + 1).most_keys);
      for (const int64_t window : {int64_t{0}, config.window(layer)}) {
        shape.window = window;
        calls.try_emplace(attention_class(shape, keys), Call{shape, keys});
      }
      shape.window = 0;
    } while (keys < longest);
  }
}

Result<CudnnAttention*> open_on_ranks(Communicator& ranks, const AttentionTools& tools) {
  CudnnAttention* own = nullptr;
  const auto open = [&]() -> Result<std::string> {
    Result<CudnnAttention*> opened = tools.open();
    if (!opened.ok()) return fmt::format("{}\n{}", opened.error().what, opened.error().next);
    own = *opened;
    return std::string();
  };
  const std::vector<std::string> problems = TRY(on_every_rank(ranks, kStage, open));
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    const std::string& problem = problems[rank];
    if (problem.empty()) continue;
    const size_t end = problem.find('\n');
    const std::string whose = problems.size() > 1 ? fmt::format("rank {}: ", rank) : "";
    return Error{ErrorKind::kConfig, whose + problem.substr(0, end), "", problem.substr(end + 1)};
  }
  return own;
}

struct Chooser {
  const ModelSection& model;
  const AttentionTools& tools;
  CudnnAttention& cudnn;

  [[nodiscard]] AttentionVerdict operator()(const Call& call) const {
    AttentionTrial trial = attention_trial(call.shape, call.longest, cudnn, tools.device);
    if (model.attention_backend == AttentionBackend::kAuto) trial.seconds = tools.seconds;
    return try_attention(trial);
  }
};

Error cannot_use(const LoadedConfig& loaded, Error error, bool names_cudnn) {
  error.where = loaded.where(kKey);
  if (!names_cudnn) error.what += ", and the checkpoint's run chose it";
  const std::string other = names_cudnn ? "set model.attention_backend = \"libtorch\""
                                        : "set model.attention_backend = \"libtorch\" and give --allow-change";
  error.next = error.next.empty() ? other : fmt::format("{}, or {}", error.next, other);
  return error;
}

void tell(const AttentionClass& calls, const AttentionVerdict& verdict, AttentionBackend wanted) {
  const bool is_cudnn = verdict.code == AttentionCode::kCudnn;
  const std::string text =
      fmt::format("attention of {}: by {}: {}", text_of(calls), is_cudnn ? "cuDNN" : "libtorch", verdict.why);
  if (wanted == AttentionBackend::kCudnn && !is_cudnn)
    log_warn(text);
  else
    log_info(text);
}

// The choices of the main rank, as text for the others.
Result<std::string> choose(const Calls& missing, const Chooser& chooser) {
  Json codes = Json::array();
  for (const auto& [calls, call] : missing) {
    const AttentionVerdict verdict = chooser(call);
    tell(calls, verdict, chooser.model.attention_backend);
    codes.push_back(verdict.code == AttentionCode::kCudnn);
  }
  // libtorch keeps the memory of the trials. Others (NCCL, CUDA graphs) need it too.
  const at::Device device = chooser.tools.device;
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
  return codes.dump();
}

// Leaves those that `choices` lack.
void tell_and_drop_chosen(const AttentionChoices& choices, AttentionBackend wanted, Calls& calls) {
  std::erase_if(calls, [&](const auto& entry) {
    const std::optional<AttentionCode> code = choices.find(entry.first);
    if (code) tell(entry.first, {*code, "the checkpoint says so"}, wanted);
    return code.has_value();
  });
}

// A run that measures nothing leaves all to libtorch, whose fused operators are deterministic, also with a window.
void choose_libtorch(Calls& missing, AttentionChoices& choices) {
  for (const auto& [calls, call] : missing) {
    choices.set(calls, AttentionCode::kLibtorch);
    tell(calls, {AttentionCode::kLibtorch, "trainer.deterministic measures nothing"}, AttentionBackend::kAuto);
  }
  missing.clear();
}

}  // namespace

AttentionTools attention_tools(const ComputeDevice& device) {
  return {open_cudnn_attention, device.device, device_timer(device.device)};
}

bool chooses_attention(const RunConfig& config, const ComputeDevice& device) {
  return device.device.is_cuda() && config.model.dtype == ModelDtype::kBfloat16;
}

std::string attention_setting(const RunConfig& config) {
  return std::string(choice_name(config.model.attention_backend)) +
         (config.trainer.deterministic ? ", deterministic" : "");
}

Result<> choose_attention(const LoadedConfig& loaded, Communicator& ranks, std::span<const AttendingModel> models,
                          int64_t longest, const AttentionTools& tools, AttentionChoices& choices) {
  const ModelSection& model = loaded.config.model;
  if (model.attention_backend == AttentionBackend::kLibtorch) return {};
  Calls missing;
  bool leaves_layers = false;
  for (const AttendingModel& one : models) add_calls(one, longest, missing, leaves_layers);
  if (leaves_layers) log_info("attention with caps, sinks or heads that cuDNN does not take: by libtorch");
  tell_and_drop_chosen(choices, model.attention_backend, missing);
  if (model.attention_backend == AttentionBackend::kAuto && loaded.config.trainer.deterministic)
    choose_libtorch(missing, choices);
  if (missing.empty() && !choices.need_cudnn()) return {};
  const bool names_cudnn = model.attention_backend == AttentionBackend::kCudnn;
  Result<CudnnAttention*> opened = open_on_ranks(ranks, tools);
  if (!opened.ok()) {
    if (opened.error().kind != ErrorKind::kConfig) return std::move(opened).error();  // a rank is gone
    if (names_cudnn || choices.need_cudnn()) return cannot_use(loaded, std::move(opened).error(), names_cudnn);
    for (const auto& [calls, call] : missing) choices.set(calls, AttentionCode::kLibtorch);
    log_info(fmt::format("attention: by libtorch, because {}", one_line(opened.error().what)));
    return {};
  }
  choices.use(*opened);
  const Chooser chooser{model, tools, **opened};
  const std::string chosen = TRY(on_main_rank(ranks, kStage, [&] { return choose(missing, chooser); }));
  const Json codes = TRY(parse_json(chosen, "the choices of rank 0"));
  size_t at = 0;
  for (const auto& [calls, call] : missing)
    choices.set(calls, codes.at(at++).get<bool>() ? AttentionCode::kCudnn : AttentionCode::kLibtorch);
  return {};
}

}  // namespace mortise
