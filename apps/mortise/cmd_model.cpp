// mortise model logprob: a model's log-probs of given tokens, as safetensors (to compare with other engines).
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "command_line.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "hub/config_names.h"
#include "model/padded_eval.h"
#include "unknown_word.h"

namespace mortise {
namespace {

constexpr const char* kModelHelp =
    R"(usage: mortise model logprob --model DIR --inputs FILE --outputs FILE [options]
       mortise model save --help

logprob  computes logits, log-probs and entropies of given tokens
save     writes a model folder again: with another dtype, in shards, or with an adapter merged

--model    Hugging Face folder with config.json and safetensors, or the folder of a LoRA adapter
--inputs   safetensors with in.input_ids and in.attention_mask, both (B, T) integers; padding on any side
--outputs  safetensors with logits (B, T, V), log_prob and entropy (B, T-1), all float32. log_prob[t] belongs to token
           t+1, at temperature 1. A sequence classifier gives scores (B, labels). Padding is 0.
--dtype    number format of the computation: float32 (default) or float64
--layers   fast (default): the kernels of training. plain: the plain operations that the kernels are tested against
--json     print a summary as one JSON object on standard output
)";

struct ModelArguments {
  std::map<std::string, std::string> values{{"--dtype", "float32"}, {"--layers", "fast"}};
  bool json = false;
};

Result<ModelArguments> parse_model(Arguments args) {
  const std::vector<std::string> names = {"--model", "--inputs", "--outputs", "--dtype", "--layers", "--json"};
  ModelArguments out;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string name = args[i];
    if (name == "--json") {
      out.json = true;
      continue;
    }
    std::string value;
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < args.size()) {
      value = args[++i];
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return unknown_word("option", name, names, "mortise model logprob");
    }
    if (value.empty())
      return Error{ErrorKind::kConfig, fmt::format("option {} needs a value", name), "mortise model logprob",
                   "write it behind the option"};
    out.values[name] = value;
  }
  for (const char* name : {"--model", "--inputs", "--outputs"}) {
    if (out.values.contains(name)) continue;
    return Error{ErrorKind::kConfig, fmt::format("option {} is missing", name), "mortise model logprob",
                 "`mortise model --help` shows the usage"};
  }
  if (out.values["--layers"] != "fast" && out.values["--layers"] != "plain") {
    return Error{ErrorKind::kConfig, "option --layers is " + quote(out.values["--layers"]), "mortise model logprob",
                 "use fast or plain"};
  }
  TRY(check_distinct({"--inputs", out.values["--inputs"]}, {"--outputs", out.values["--outputs"]},
                     "mortise model logprob"));
  return out;
}

// An integer (B, T) tensor of the file as int64, copied.
Result<at::Tensor> integers(const SafetensorsFile& file, const std::string& name) {
  const TensorView view = TRY(file.get(name));
  at::ScalarType type = at::kLong;
  switch (view.dtype) {
    case DType::kI64:
      break;
    case DType::kI32:
      type = at::kInt;
      break;
    case DType::kU8:
      type = at::kByte;
      break;
    case DType::kBool:
      type = at::kBool;
      break;
    default:
      return Error{ErrorKind::kData,
                   fmt::format("tensor {} must hold integers, has {}", quote(name), dtype_name(view.dtype)),
                   file.path().string(),
                   {}};
  }
  if (view.shape.size() != 2) {
    return Error{ErrorKind::kData, fmt::format("tensor {} must be (B, T)", quote(name)), file.path().string(),
                 "save it with a row for each text"};
  }
  auto* bytes = const_cast<std::byte*>(view.bytes.data());  // only read from
  return at::from_blob(bytes, view.shape, at::TensorOptions().dtype(type)).to(at::kLong, false, /*copy=*/true);
}

Result<> check_mask(const at::Tensor& mask_BT, const Path& path) {
  const std::span<const int64_t> values(mask_BT.const_data_ptr<int64_t>(), static_cast<size_t>(mask_BT.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0 || values[i] == 1) continue;
    const auto width = static_cast<size_t>(mask_BT.size(1));
    return Error{
        ErrorKind::kData,
        fmt::format("tensor 'in.attention_mask' holds {} in row {}, column {}", values[i], i / width, i % width),
        path.string(), "a mask is 1 at real tokens and 0 at padding"};
  }
  return {};
}

Result<int> logprob(Arguments args) {
  const ModelArguments parsed = TRY(parse_model(args));
  Env& env = default_env();
  const Path inputs = parsed.values.at("--inputs");
  const SafetensorsFile file = TRY(SafetensorsFile::open(env, inputs));
  const at::Tensor ids = TRY(integers(file, "in.input_ids"));
  const at::Tensor mask = TRY(integers(file, "in.attention_mask"));
  TRY(check_mask(mask, inputs));
  if (ids.numel() == 0) {
    return Error{ErrorKind::kData, "tensor 'in.input_ids' is empty", inputs.string(),
                 "give at least one row with at least one token"};
  }
  const Path folder = TRY(model_folder(env, parsed.values.at("--model")));
  const Model model = TRY(Model::load(env, folder, parsed.values.at("--dtype")));
  const LayerPath path = parsed.values.at("--layers") == "fast" ? LayerPath::kFast : LayerPath::kPlain;
  auto evaluated = evaluate_padded(model, ids, mask, {path, {}});
  if (!evaluated.ok()) {
    if (evaluated.error().kind == ErrorKind::kData)
      evaluated.error().where = fmt::format("{}: {}", inputs.string(), evaluated.error().where);
    return std::move(evaluated).error();
  }
  const std::pair<const char*, at::Tensor> all[] = {{"logits", evaluated->logits_BTV},
                                                    {"log_prob", evaluated->log_prob_BT1},
                                                    {"entropy", evaluated->entropy_BT1},
                                                    {"scores", evaluated->scores_BC}};
  std::vector<at::Tensor> held;
  std::vector<TensorView> views;
  Json names = Json::array();
  for (const auto& [name, tensor] : all) {
    if (!tensor.defined()) continue;
    held.push_back(tensor.to(at::kFloat).contiguous());
    const std::span<const float> values(held.back().const_data_ptr<float>(), static_cast<size_t>(held.back().numel()));
    views.push_back({name, DType::kF32, held.back().sizes().vec(), std::as_bytes(values)});
    names.push_back(name);
  }
  const Path outputs = parsed.values.at("--outputs");
  TRY(write_safetensors_file(env, outputs, views));
  if (parsed.json) {
    std::cout << dump_json(Json{{"outputs", outputs.string()}, {"tensors", names}, {"rows", ids.size(0)}}) << "\n";
  }
  return 0;
}

}  // namespace

int cmd_model(Arguments args) {
  if (!args.empty() && args[0] == "save") return cmd_model_save(args.subspan(1));
  if (wants_help(args)) {
    std::cout << kModelHelp;
    return 0;
  }
  if (args.empty() || args[0] != "logprob") {
    const std::vector<std::string> commands = {"logprob", "save"};
    return fail(args.empty() ? missing_command(commands, "mortise model")
                             : unknown_word("command", args[0], commands, "mortise model"));
  }
  auto code = logprob(args.subspan(1));
  return code.ok() ? *code : fail(code.error());
}

}  // namespace mortise
