// config.json: what is read, and what is refused by file and key.
#include <gtest/gtest.h>

#include "foundation/formats/json.h"
#include "model/layers/rope.h"
#include "model/weights/model_config.h"

namespace mortise {
namespace {

Json base() {
  return Json{{"architectures", Json::array({"Qwen2ForCausalLM"})},
              {"model_type", "qwen2"},
              {"vocab_size", 20},
              {"hidden_size", 8},
              {"intermediate_size", 16},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 2},
              {"num_key_value_heads", 1},
              {"max_position_embeddings", 64}};
}

Result<ModelConfig> parse(const Json& json) { return parse_model_config(dump_json(json), "", "m/config.json"); }

void expect_refused(const Json& json, const std::string& key) {
  const auto config = parse(json);
  ASSERT_FALSE(config.ok()) << key;
  EXPECT_EQ(config.error().kind, ErrorKind::kData);
  EXPECT_NE(config.error().to_string().find("'" + key + "'"), std::string::npos) << config.error().to_string();
  EXPECT_NE(config.error().to_string().find("m/config.json"), std::string::npos) << config.error().to_string();
}

TEST(ModelConfig, ReadsDefaultsOfTransformers) {
  const auto config = parse(base());
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->o_bias);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_DOUBLE_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_DOUBLE_EQ(config->rope.theta, 10000.0);
  EXPECT_TRUE(config->eos_token_ids.empty());
}

TEST(ModelConfig, RefusesWhatWouldChangeNumbers) {
  const std::pair<const char*, Json> cases[] = {
      {"hidden_act", "gelu"},
      {"attention_dropout", 0.1},
      {"quantization_config", Json{{"bits", 4}}},
      {"layer_types", Json::array({"full_attention", "sliding_attention"})},
      {"partial_rotary_factor", 0.5},
      {"is_causal", false},
      {"model_type", "mamba"},
      {"architectures", Json::array({"Qwen2ForTokenClassification"})},
  };
  for (const auto& [key, value] : cases) {
    Json json = base();
    json[key] = value;
    expect_refused(json, key);
  }
  Json window = base();
  window["use_sliding_window"] = true;
  window["sliding_window"] = 4;
  window["max_window_layers"] = 1;
  expect_refused(window, "use_sliding_window");
  window["max_window_layers"] = 2;  // no layer is windowed
  EXPECT_TRUE(parse(window).ok());
  Json dynamic = base();
  dynamic["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  expect_refused(dynamic, "rope_scaling.rope_type");
  Json old_dynamic = base();
  old_dynamic["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  expect_refused(old_dynamic, "rope_scaling.type");
  Json per_layer = base();
  per_layer["rope_parameters"] = {{"full_attention", {{"rope_theta", 1.0}}}};
  expect_refused(per_layer, "rope_parameters");
  Json incomplete = base();
  incomplete["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 2.0}};
  expect_refused(incomplete, "rope_parameters.low_freq_factor");
}

TEST(ModelConfig, RefusesMissingAndWrongKeys) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = base();
    json.erase(key);
    expect_refused(json, key);
    json[key] = -1;
    expect_refused(json, key);
    json[key] = "8";
    expect_refused(json, key);
  }
  Json heads = base();
  heads["num_key_value_heads"] = 3;
  expect_refused(heads, "num_key_value_heads");
  Json tie = base();
  tie["tie_word_embeddings"] = "yes";
  expect_refused(tie, "tie_word_embeddings");
  EXPECT_FALSE(parse_model_config("{", "", "x").ok());
  EXPECT_FALSE(parse_model_config("[]", "", "x").ok());
}

TEST(ModelConfig, RopeFormsOfBothVersions) {
  Json classic = base();
  classic["rope_theta"] = 5e5;
  classic["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  Json fresh = base();
  fresh["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 4.0}};
  const auto a = parse(classic);
  const auto b = parse(fresh);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->rope, b->rope);
  EXPECT_DOUBLE_EQ(rope_inverse_frequencies(a->rope, 4)[0], 0.25);
}

TEST(ModelConfig, SavingKeepsTheTextAndChangesOnlyTheDtype) {
  Json json = base();
  json["torch_dtype"] = "bfloat16";
  json["my_note"] = "kept";
  const auto config = parse(json);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(*model_config_text(*config, "bfloat16"), config->config_text);
  const auto changed = parse_json(*model_config_text(*config, "float32"), "");
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ((*changed)["torch_dtype"], "float32");
  EXPECT_EQ((*changed)["my_note"], "kept");
  Json renamed = json;
  renamed["torch_dtype"] = "float32";
  EXPECT_EQ(*changed, renamed);
}

TEST(ModelConfig, FreshConfigsReadBackAsTheyWere) {
  auto config = make_qwen2_config({.vocab_size = 30,
                                   .hidden_size = 12,
                                   .intermediate_size = 20,
                                   .num_layers = 3,
                                   .num_heads = 3,
                                   .num_kv_heads = 1,
                                   .tie_word_embeddings = true,
                                   .rope_theta = 2e4});
  ASSERT_TRUE(config.ok());
  config->eos_token_ids = {3, 4};
  config->pad_token_id = 0;
  const auto back =
      parse_model_config(*model_config_text(*config, "float32"), generation_config_text(*config), "config.json");
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(back->num_parameters(), config->num_parameters());
  EXPECT_EQ(back->rope, config->rope);
  EXPECT_EQ(back->eos_token_ids, config->eos_token_ids);
  EXPECT_EQ(back->pad_token_id, config->pad_token_id);
  EXPECT_EQ(back->bos_token_id, std::nullopt);
  EXPECT_EQ(back->tie_word_embeddings, true);
  EXPECT_FALSE(make_qwen2_config({.hidden_size = 10, .num_heads = 4}).ok());
  EXPECT_FALSE(make_qwen2_config({.num_heads = 4, .num_kv_heads = 3}).ok());
}

}  // namespace
}  // namespace mortise
