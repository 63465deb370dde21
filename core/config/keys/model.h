// [model]: the model that is trained.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/adapter_choice.h"
#include "foundation/base/device_name.h"
#include "foundation/formats/json.h"

namespace mortise {

// Numbers of weights, gradients and activations. bfloat16: of the layers' matrices and of what they multiply.
enum class ModelDtype { kFloat32, kBfloat16, kFloat64 };
constexpr auto choice_names(ModelDtype) { return std::array<std::string_view, 3>{"float32", "bfloat16", "float64"}; }

// Bytes of a trained weight, a gradient or an activation.
[[nodiscard]] constexpr int64_t num_bytes(ModelDtype dtype) { return dtype == ModelDtype::kFloat64 ? 8 : 4; }
// Bytes of a number that a layer multiplies.
[[nodiscard]] constexpr int64_t num_product_bytes(ModelDtype dtype) {
  return dtype == ModelDtype::kBfloat16 ? 2 : num_bytes(dtype);
}

// What computes the layers in training: kernels, or the operations of libtorch that check them.
enum class LayerPasses { kFast, kPlain };
constexpr auto choice_names(LayerPasses) { return std::array<std::string_view, 2>{"fast", "plain"}; }

// What computes attention of bfloat16 models in training on a GPU.
enum class AttentionBackend { kAuto, kLibtorch, kCudnn };
constexpr auto choice_names(AttentionBackend) { return std::array<std::string_view, 3>{"auto", "libtorch", "cudnn"}; }

struct ModelSection {
  std::string path;                         // Hugging Face folder (TRL: model_name_or_path); "" = not given
  ModelDtype dtype = ModelDtype::kFloat32;  // weights, gradients, activations
  std::string device = "cpu";               // where the model lies, computes and samples
  LayerPasses layers = LayerPasses::kFast;  // what computes them in training
  AttentionBackend attention_backend = AttentionBackend::kAuto;  // on a GPU: which code computes attention
  bool enable_gradient_checkpointing = false;       // compute layers again in backward (TRL: gradient_checkpointing)
  std::optional<int64_t> activation_memory_mib;     // with that: layers kept as long as they fit; null = none
  std::optional<std::string> custom_chat_template;  // file with a Jinja template used in place of the model's own
  int64_t lora_rank = 0;     // rank of the adapter that is trained instead of the weights; 0 = none (PEFT: r)
  double lora_alpha = 16.0;  // the adapter's product counts lora_alpha / lora_rank times
  bool use_rslora = false;   // lora_alpha / sqrt(lora_rank) times
  bool use_dora = false;     // a trained magnitude for each row of the adapted matrices
  LoraInit init_lora_weights = LoraInit::kDefault;  // what A and B are at the start
  double lora_dropout = 0.0;                        // probability that an update drops a feature of the adapter's input
  std::vector<std::string> target_modules = {"all-linear"};  // ends of names of the adapted matrices
  std::vector<std::string> exclude_modules;                  // exceptions from target_modules
  std::vector<std::string> target_parameters;                // adapted routers and experts of a mixture
  std::vector<int64_t> layers_to_transform;                  // the layers that get an adapter; empty = all
  Json rank_pattern = Json::object();                        // ranks of the modules that a pattern matches
  Json alpha_pattern = Json::object();                       // the same of lora_alpha
  std::vector<std::string> modules_to_save;                  // modules that are trained as a whole
  LoraBias lora_bias = LoraBias::kNone;                      // the biases that are trained
  std::optional<std::string> lora_adapter_path;  // PEFT folder of an adapter to continue; sets rank, modules
  [[nodiscard]] bool trains_adapter() const { return lora_rank > 0 || lora_adapter_path.has_value(); }
  bool operator==(const ModelSection&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

inline constexpr const char* kAdapterSaysIt = "the adapter of model.lora_adapter_path has its own";

inline constexpr auto starts_no_adapter = [](const auto& k) -> bool {
  return k.config.model.lora_rank == 0 || k.config.model.lora_adapter_path;
};

inline constexpr auto why_no_fresh_adapter = [](const auto& k) -> std::string {
  return k.config.model.lora_adapter_path ? kAdapterSaysIt : "model.lora_rank is 0, so all weights are trained";
};

template <class Keys>
void describe_lora(Keys& keys) {
  keys.compared(
          "lora_rank", &ModelSection::lora_rank,
          "Rank of a LoRA adapter (arXiv 2106.09685). The adapter is trained and the weights are frozen. It starts "
          "as in PEFT (init_lora_weights). The reference model is the base without the adapter. 0: no "
          "adapter; all weights are trained.")
      .at_least(0)
      .at_most(65536)
      .trl("lora_r")
      .no_effect(
          kLearning, [](const auto& k) { return k.config.model.lora_adapter_path.has_value(); }, kAdapterSaysIt);
  keys.compared("lora_alpha", &ModelSection::lora_alpha,
                "Scale of the adapter: its product is multiplied by lora_alpha / lora_rank.")
      .above(0)
      .at_most(1e9)
      .trl("lora_alpha")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("use_rslora", &ModelSection::use_rslora,
                "Multiply the adapter's product by lora_alpha / sqrt(lora_rank) instead (rsLoRA, arXiv 2312.03732).")
      .trl("use_rslora")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("lora_dropout", &ModelSection::lora_dropout,
                "Probability that an update drops a feature of an adapter's input (PEFT: lora_dropout). Sampling, "
                "old_log_prob and the reference have no dropout.")
      .at_least(0)
      .below(1)
      .trl("lora_dropout")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared(
          "target_modules", &ModelSection::target_modules,
          "Matrices that get an adapter, given by the end of their name after a dot (q_proj, layers.0.mlp.up_proj). "
          "all-linear: every matrix of the layers.")
      .trl("lora_target_modules")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared(
          "exclude_modules", &ModelSection::exclude_modules,
          "Matrices that get no adapter although target_modules matches them. The names work as in target_modules.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared(
          "target_parameters", &ModelSection::target_parameters,
          "Experts and routers of a mixture that get an adapter, given by the end of their name in transformers 5: "
          "mlp.experts.gate_up_proj, 7.mlp.experts.down_proj, mlp.gate.weight. One adapter covers all experts of a "
          "layer. As in PEFT it has no dropout, no DoRA, and no pissa or olora. []: none.")
      .trl("lora_target_parameters")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("lora_adapter_path", &ModelSection::lora_adapter_path,
                "Folder of a LoRA adapter in PEFT's format to continue training. All settings of the adapter come from "
                "the folder. "
                "null: a new adapter if lora_rank is above 0.")
      .place()
      .as_in_verl("null");
}

// Settings of an adapter that few runs need. All have PEFT's meaning.
template <class Keys>
void describe_lora_variants(Keys& keys) {
  keys.compared("use_dora", &ModelSection::use_dora,
                "DoRA (arXiv 2402.09353): each row of an adapted matrix is divided by its norm and multiplied by a "
                "trained magnitude.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared(
          "init_lora_weights", &ModelSection::init_lora_weights,
          "What A and B are at the start. default: A uniform, B zero. gaussian: A normal with deviation 1 / rank, "
          "B zero. pissa: the largest singular values of the matrix (arXiv 2404.02948). olora: the first columns "
          "of its QR decomposition (arXiv 2406.01775). The last two take the start out of the base, so the "
          "model starts unchanged.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("layers_to_transform", &ModelSection::layers_to_transform,
                "Numbers of the layers whose matrices get an adapter, from 0. []: all layers.")
      .at_least(0)
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("rank_pattern", &ModelSection::rank_pattern,
                "Ranks of single modules: {\"q_proj\" = 4}. A name is a regular expression for the end of a module's "
                "name after a dot. The first that matches counts; other modules have lora_rank.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("alpha_pattern", &ModelSection::alpha_pattern,
                "Values of lora_alpha for single modules. The names work as in rank_pattern.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("modules_to_save", &ModelSection::modules_to_save,
                "Modules that are trained as a whole next to the adapter, and saved with it, given by the end of their "
                "name: lm_head, embed_tokens, norm. The reference keeps the module as it was.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
  keys.compared("lora_bias", &ModelSection::lora_bias,
                "Biases that are trained next to the adapter (PEFT: bias). none, all, or lora_only: those of the "
                "adapted matrices.")
      .no_effect(kLearning, starts_no_adapter, why_no_fresh_adapter);
}

inline constexpr auto no_gpu_attention = [](const auto& k) -> bool {
  return !may_be_gpu(k.config.model.device) || k.config.model.dtype != ModelDtype::kBfloat16;
};

template <class Keys>
void describe_attention_backend(Keys& keys) {
  keys.compared(
          "attention_backend", &ModelSection::attention_backend,
          "Which code computes attention of a bfloat16 model in training on a GPU. libtorch: its operators. cudnn: "
          "cuDNN's kernels for the layers that they take, and libtorch's operators for others. auto: at its start the "
          "run measures both, and takes cuDNN where it is faster. With trainer.deterministic, auto takes libtorch's "
          "operators, and measures nothing. Checkpoints keep the choice (docs/cuda.md).")
      .no_effect(kLearning, no_gpu_attention, [](const auto& k) -> std::string {
        return k.config.model.dtype != ModelDtype::kBfloat16
                   ? "cuDNN computes attention of bfloat16 models alone (model.dtype)"
                   : "cuDNN computes attention on a GPU alone (model.device)";
      });
}

template <class Keys>
void describe_model(Keys& keys) {
  keys.compared(
          "path", &ModelSection::path,
          "Folder in Hugging Face layout: config.json, safetensors weights, tokenizer files. Or a name on the hub, such as "
          "Qwen/Qwen2.5-0.5B-Instruct or NAME@REVISION (docs/hub.md).")
      .place()
      .trl("model_name_or_path");
  keys.compared(
          "dtype", &ModelSection::dtype,
          "Number format. float32 and float64: weights, gradients, optimizer state and activations; use float64 to "
          "check numbers. bfloat16: the layers' matrices and what they multiply, with float32 sums. The optimizer "
          "steps float32 master weights; gradients, norms, embedding, head and loss are float32. Sampling and "
          "the reference use the same rounded matrices. docs/precision.md says on which CPUs it is faster.")
      .read_by(kInGenerate | kInServe);
  keys.free(  // a resume compares the device itself (train/resume/run_inputs.h)
          "device", &ModelSection::device,
          "Where the policy, its reference, its teacher and its critic lie, learn and sample. cpu: on the CPU. cuda or cuda:N: on "
          "a GPU (number N, from 0), by Mortise's kernels and libtorch's operators; `./dev deps --cuda` "
          "fetches the libraries (docs/cuda.md). With several ranks, cuda gives each the GPU of its number on the machine, "
          "and cuda:N is refused. auto: the first GPU if there is one and it can do what the run needs, else the CPU. With "
          "several ranks, auto takes the CPU. cpu-as-device: the code of a GPU on the CPU. It is slow and for tests. "
          "Reward models (docs/plugins/reward_models.md) are there too, and losses with a CUDA build. Other plugins stay on the CPU.")
      .read_by(kInGenerate | kInServe);
  keys.compared(
      "layers", &ModelSection::layers,
      "What computes the layers in training. fast uses Mortise's own kernels. plain uses the libtorch operations "
      "that the kernels are tested against, and takes several times the time and memory. Use plain to find out "
      "whether a number depends on the kernels. rollout.kernels does the same for sampling.");
  describe_attention_backend(keys);
  keys.free("enable_gradient_checkpointing", &ModelSection::enable_gradient_checkpointing,
            "Recompute the layers in the backward pass instead of keeping their activations. This saves memory and "
            "takes about a third more time. It does not change any gradient, not even the last bit.")
      .as_in_verl("")
      .transformers("gradient_checkpointing", "");
  keys.free("activation_memory_mib", &ModelSection::activation_memory_mib,
            "MiB of activations that a pass may keep, with enable_gradient_checkpointing. Only layers that do not fit "
            "are recomputed. null: all layers are recomputed.")
      .at_least(0)
      .at_most(1 << 30)
      .no_effect(
          kLearning, [](const auto& k) { return !k.config.model.enable_gradient_checkpointing; },
          "model.enable_gradient_checkpointing is false, so all activations are kept");
  keys.compared("custom_chat_template", &ModelSection::custom_chat_template,
                "File with a Jinja chat template to use instead of the one in the model's folder.")
      .place()
      .read_by(kInGenerate | kInServe);
}

template <class Catalog>
void describe_model_section(Catalog& catalog) {
  auto keys =
      catalog.table("model", "The model that is trained.", [](auto& run) -> ModelSection& { return run.model; });
  describe_model(keys);
  describe_lora(keys);
  describe_lora_variants(keys);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
