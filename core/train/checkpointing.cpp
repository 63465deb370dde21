#include "train/checkpointing.h"

#include <utility>

#include "checkpoint/writer.h"
#include "foundation/base/clock.h"
#include "foundation/base/log.h"
#include "foundation/formats/safetensors.h"

namespace mortise {

namespace {

// The policy as a Hugging Face folder: config, weights, tokenizer files as they came.
Result<std::vector<CheckpointFile>> policy_files(const RunParts& parts) {
  const ModelConfig& config = parts.model->config();
  std::vector<CheckpointFile> files;
  files.push_back(
      checkpoint_text_file("huggingface/config.json", TRY(model_config_text(config, parts.config.model.dtype))));
  files.push_back(checkpoint_text_file("huggingface/generation_config.json", generation_config_text(config)));
  files.push_back({"huggingface/model.safetensors", [&parts](WritableFile& file) -> Result<> {
                     std::vector<TensorView> views;
                     for (const NamedParameter& parameter : parts.model->parameters()) {
                       const auto sizes = parameter.tensor.sizes();
                       views.push_back({parameter.name,
                                        parts.model->dtype() == at::kDouble ? DType::kF64 : DType::kF32,
                                        {sizes.begin(), sizes.end()},
                                        {static_cast<const std::byte*>(parameter.tensor.const_data_ptr()),
                                         parameter.tensor.nbytes()}});
                     }
                     return write_safetensors(file, views, {{"format", "pt"}});
                   }});
  for (const std::string& name : TRY(list_tokenizer_files(parts.folder->path, parts.env))) {
    files.push_back(checkpoint_text_file("huggingface/" + name, TRY(parts.env.read_file(parts.folder->path / name))));
  }
  return files;
}

}  // namespace

Result<Path> save_run(RunParts& parts) {
  CheckpointWriterOptions options;
  options.keep_last = parts.config.trainer.max_actor_ckpt_to_keep.value_or(0);
  CheckpointRequest request;
  request.step = parts.counters.step;
  request.state = TRY(parts.stateful.save());
  request.files = TRY(policy_files(parts));
  CheckpointWriter writer(parts.env, parts.config.trainer.default_local_dir, options);
  const SavedCheckpoint saved = TRY(writer.save(request));
  for (const std::string& warning : saved.warnings) log_warn(warning);
  return saved.path;
}

Result<> RunSaver::save_if_due() {
  const int64_t step = parts_->counters.step;
  const int64_t frequency = parts_->config.trainer.save_freq;
  const bool is_last = step == parts_->total_steps;
  if (!is_last && (frequency <= 0 || step % frequency != 0)) return {};
  return save(/*must_succeed=*/is_last);
}

Result<> RunSaver::finish() { return saved_step_ == parts_->counters.step ? Result<>() : save(/*must_succeed=*/true); }

void RunSaver::keep_finished_steps(const Error& why) {
  const int64_t step = parts_->counters.step;
  if (step == 0 || saved_step_ == step || why.kind == ErrorKind::kNumerics) return;
  parts_->source->give_back();
  if (save(/*must_succeed=*/false).ok() && saved_step_ == step)
    log_info("the " + std::to_string(step) + " finished steps are saved in " + last_checkpoint_);
}

double RunSaver::take_seconds() { return std::exchange(seconds_, 0.0); }

Result<> RunSaver::save(bool must_succeed) {
  const Stopwatch watch(parts_->env);
  auto saved = save_run(*parts_);
  if (!saved.ok()) {
    if (must_succeed) return std::move(saved).error();
    log_error("the checkpoint of step " + std::to_string(parts_->counters.step) +
              " could not be saved, earlier ones stand: " + saved.error().to_string());
    return {};
  }
  saved_step_ = parts_->counters.step;
  last_checkpoint_ = saved->string();
  seconds_ = watch.elapsed_s();
  return {};
}

}  // namespace mortise
