// The keys of the top level, [model] and [data]: what is trained, on what.
#include "config/field_builder.h"

namespace mortise {
namespace {

void add_lora(FieldTable<RunConfig, ModelSection>& table) {
  table
      .add("lora_rank", &ModelSection::lora_rank,
           "Rank of a LoRA adapter (arXiv 2106.09685) that is trained in place of the weights, which are frozen; begun "
           "as "
           "PEFT does, without dropout and biases. The reference model is the base without the adapter. 0: no adapter, "
           "all weights are trained.")
      .at_least(0)
      .at_most(65536)
      .trl("lora_r");
  table
      .add("lora_alpha", &ModelSection::lora_alpha,
           "Scale of the adapter: its product counts lora_alpha / lora_rank times.")
      .above(0)
      .at_most(1e9)
      .trl("lora_alpha");
  table
      .add("target_modules", &ModelSection::target_modules,
           "Matrices that get an adapter, by the end of their names from a dot on (q_proj, layers.0.mlp.up_proj); "
           "all-linear: every matrix of the layers.")
      .trl("lora_target_modules");
  table.add("exclude_modules", &ModelSection::exclude_modules,
            "Of the matrices that target_modules names, those that get no adapter, named in the same way.");
  table.add(
      "lora_adapter_path", &ModelSection::lora_adapter_path,
      "Folder of a LoRA adapter in PEFT's form to go on from in place of a fresh one; rank, scale and modules are "
      "then its own. null: a fresh one if lora_rank is above 0.");
}

void add_model(FieldCatalog& catalog) {
  FieldTable<RunConfig, ModelSection> table(catalog, "model", "The model that is trained.",
                                            [](RunConfig& config) -> ModelSection& { return config.model; });
  table
      .add("path", &ModelSection::path,
           "Folder in Hugging Face layout: config.json, safetensors weights, tokenizer files.")
      .trl("model_name_or_path");
  table
      .add("dtype", &ModelSection::dtype,
           "Number format of weights, gradients, optimizer state and activations. float64 is for checking numbers.")
      .one_of({"float32", "float64"});
  table
      .add("layers", &ModelSection::layers,
           "What computes the layers in training. fast: kernels written for it. plain: the operations of libtorch that "
           "judge them, at several times the time and memory, to find out whether a number is the kernels' doing. "
           "rollout.kernels does the same for sampling.")
      .one_of({"fast", "plain"});
  table
      .add("enable_gradient_checkpointing", &ModelSection::enable_gradient_checkpointing,
           "Keep no activations of the layers for the backward pass but compute them again there: less memory for a "
           "third more time. Changes no gradient, to the last bit.")
      .trl("gradient_checkpointing");
  table
      .add("activation_memory_mib", &ModelSection::activation_memory_mib,
           "With enable_gradient_checkpointing: MiB that a pass may keep of the layers' activations; only layers that "
           "do not fit are computed again. null: all layers are.")
      .at_least(0)
      .at_most(1 << 30);
  table.add("custom_chat_template", &ModelSection::custom_chat_template,
            "File with a Jinja chat template to use in place of the one in the model's folder.");
  add_lora(table);
}

void add_data_rows(FieldTable<RunConfig, DataConfig>& table) {
  table
      .add("train_files", &DataConfig::train_files,
           "Training rows: a JSONL file or a list of them, read in this order. Paths are relative to the working "
           "directory.")
      .trl("dataset_name");
  table.add("val_files", &DataConfig::val_files, "Validation rows: a JSONL file or a list of them.");
  table.add("prompt_key", &DataConfig::prompt_key,
            "Column that holds the prompt: text, or a list of {role, content} messages.");
  table.add(
      "response_key", &DataConfig::response_key,
      "Column that holds the completion to learn: text, or a list of {role, content} messages that go on with the "
      "prompt's (TRL: completion). Read by `mortise sft` only.");
  table.add(
      "messages_key", &DataConfig::messages_key,
      "Column that holds a whole chat to learn, in rows without a completion: a list of {role, content} messages. "
      "Read by `mortise sft` only.");
  table
      .add("max_prompt_length", &DataConfig::max_prompt_length,
           "Longest prompt in tokens, chat template included; truncation says what is done to longer ones.")
      .at_least(1)
      .at_most(1 << 24);
  table.add("max_response_length", &DataConfig::max_response_length, "Longest completion in tokens.")
      .at_least(1)
      .at_most(1 << 24)
      .trl("max_completion_length");
  table.add("filter_overlong_prompts", &DataConfig::filter_overlong_prompts,
            "Drop rows whose prompt is longer than max_prompt_length when the files are read; their number is told.");
  table
      .add(
          "truncation", &DataConfig::truncation,
          "What is done to a prompt longer than max_prompt_length: error stops the run, left and right cut tokens from "
          "that side, middle keeps both ends.")
      .one_of({"error", "left", "right", "middle"});
}

void add_data_order(FieldTable<RunConfig, DataConfig>& table) {
  table
      .add("shuffle", &DataConfig::shuffle,
           "Go through the training rows in a new random order each epoch; false keeps the order of the files.")
      .trl("shuffle_dataset");
  table.add("seed", &DataConfig::seed, "Seed of the order of the rows. null: trainer.seed.")
      .at_least(0)
      .trl("data_seed");
  table
      .add("train_batch_size", &DataConfig::train_batch_size,
           "Prompts per step, over all ranks; each gives rollout.n completions. The last, incomplete batch of an epoch "
           "is dropped.")
      .at_least(1)
      .trl("generation_batch_size (there in completions)");
  table
      .add("gen_batch_size", &DataConfig::gen_batch_size,
           "Prompts in one generation batch of algorithm.filter_groups, which draws such batches until a step has "
           "enough "
           "groups. null: train_batch_size.")
      .at_least(1);
  table
      .add("train_max_samples", &DataConfig::train_max_samples,
           "Use only so many of the training rows (the first; verl draws them at random if shuffle). -1: all.")
      .at_least(-1);
  table
      .add("val_max_samples", &DataConfig::val_max_samples,
           "Use only so many of the validation rows (the first). -1: all.")
      .at_least(-1);
  table.add(
      "system_prompt", &DataConfig::system_prompt,
      "System message that is put in front of every chat without one. Rows whose prompt is text are then an error. "
      "null: none. ms-swift calls it system.");
  table.add(
      "columns", &DataConfig::columns,
      "Types of data columns as rewards see them: columns = { answer = \"text\" }, with text, integer, number or "
      "json. Needed only where the values of a column are of several kinds. text and json take every value, a list "
      "as text is its JSON. A column that is not named here gets its type from all training and validation rows.");
  table
      .add("apply_chat_template_kwargs", &DataConfig::apply_chat_template_kwargs,
           "Further variables for the chat template, for example enable_thinking = false.")
      .trl("chat_template_kwargs");
}

}  // namespace

void add_run_fields(FieldCatalog& catalog) {
  FieldTable<RunConfig, RunConfig> top(catalog, "", "", [](RunConfig& config) -> RunConfig& { return config; });
  top.add(
      "preset", &RunConfig::preset,
      "A named group of keys. In a file it lies over the files of `base` and under the file's other keys; on the "
      "command line (preset=gspo) it lies over all files and under the other overrides. The run tells which keys it "
      "replaces and which override it. `mortise config explain preset` lists the names.");
  add_model(catalog);
  FieldTable<RunConfig, DataConfig> data(catalog, "data", "The rows: where they are, how long, in which order.",
                                         [](RunConfig& config) -> DataConfig& { return config.data; });
  add_data_rows(data);
  add_data_order(data);
}

}  // namespace mortise
