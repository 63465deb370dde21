// config.json: what the reader accepts, and what it refuses by file and key.
#include <gtest/gtest.h>

#include <cmath>

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
      {"layer_types", Json::array({"full_attention", "linear_attention"})},
      {"layer_types", Json::array({"full_attention"})},
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
  Json quantized = base();
  quantized["quantization_config"] = {{"bits", 4}};
  expect_refused(quantized, "quantization_config.load_in_4bit");
  Json no_window = base();
  no_window["layer_types"] = Json::array({"full_attention", "sliding_attention"});
  expect_refused(no_window, "sliding_window");
  Json longrope = base();
  longrope["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 2.0}};
  expect_refused(longrope, "rope_scaling.short_factor");
  longrope["rope_scaling"] = {{"rope_type", "longrope"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {1.0}}};
  expect_refused(longrope, "rope_scaling.long_factor");
  Json old_key = base();
  old_key["rope_scaling"] = {{"type", "su"}, {"factor", 2.0}};
  expect_refused(old_key, "rope_scaling.type");
  Json per_layer = base();
  per_layer["rope_parameters"] = {{"full_attention", {{"rope_theta", 1.0}}}};
  expect_refused(per_layer, "rope_parameters");
  Json incomplete = base();
  incomplete["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 2.0}};
  expect_refused(incomplete, "rope_parameters.low_freq_factor");
}

// Inference does not use it, but training would differ from the requested one.
TEST(ModelConfig, DropoutIsReadAndRefusedForTraining) {
  Json json = base();
  ASSERT_TRUE(check_trainable(*parse(json), "m").ok());
  json["attention_dropout"] = 0.1;
  json["resid_pdrop"] = 0.2;  // which Qwen2 does not look at
  const auto qwen = parse(json);
  ASSERT_TRUE(qwen.ok()) << qwen.error().to_string();
  const auto refused = check_trainable(*qwen, "m");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(
      refused.error().to_string(),
      "m/config.json: key 'attention_dropout' = 0.1 asks for dropout in training, which is done without; set it to "
      "0.0 there: sampling, log-probs and scores stay the same, and every update is exact");
  json["model_type"] = "phi3";
  json["architectures"] = Json::array({"Phi3ForCausalLM"});
  const auto phi = parse(json);
  ASSERT_TRUE(phi.ok()) << phi.error().to_string();
  EXPECT_NE(check_trainable(*phi, "m").error().to_string().find("'attention_dropout' = 0.1, 'resid_pdrop' = 0.2"),
            std::string::npos);
  json["attention_dropout"] = "much";
  expect_refused(json, "attention_dropout");
}

// The second architecture of each family, with a field that would change the numbers.
TEST(ModelConfig, FamiliesRefuseTheirOwnFieldsByName) {
  struct Refusal {
    const char* model_type;
    const char* architecture;
    const char* key;
    Json value;
  };
  const Refusal cases[] = {
      {"phi3", "Phi3ForCausalLM", "partial_rotary_factor", 0.75},
      {"phi3", "Phi3ForCausalLM", "partial_rotary_factor", 1.5},
      {"gemma2", "Gemma2ForCausalLM", "use_bidirectional_attention", true},
      {"gemma2", "Gemma2ForCausalLM", "hidden_activation", "relu"},
      {"gemma2", "Gemma2ForCausalLM", "sliding_window", nullptr},
      {"gemma2", "Gemma2ForCausalLM", "query_pre_attn_scalar", 0},
      {"gemma3_text", "Gemma3ForCausalLM", "rope_parameters", Json{{"rope_type", "default"}}},
      {"gemma3_text", "Gemma3ForCausalLM", "final_logit_softcapping", -1.0},
      {"mistral", "MistralForCausalLM", "sliding_window", 0},
      {"llama", "LlamaForCausalLM", "hidden_act", "gelu"},
  };
  for (const Refusal& c : cases) {
    Json json = base();
    json["model_type"] = c.model_type;
    json["architectures"] = Json::array({c.architecture});
    ASSERT_TRUE(parse(json).ok()) << c.model_type << parse(json).error().to_string();
    json[c.key] = c.value;
    expect_refused(json, c.key);
  }
}

// Phi-4-mini's keys: the outer original_max_position_embeddings counts, 4096 where it is absent; "su" and "yarn" are
// old names of longrope.
TEST(ModelConfig, LongropeAndPartlyRotatedHeadsOfPhi3) {
  Json json = base();
  json["model_type"] = "phi3";
  json["architectures"] = Json::array({"Phi3ForCausalLM"});
  json["hidden_size"] = 16;  // heads of 8, 4 of whose dimensions rotate
  json["partial_rotary_factor"] = 0.5;
  json["original_max_position_embeddings"] = 32;
  json["max_position_embeddings"] = 128;
  json["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {1.5, 4.0}}};
  for (const char* type : {"longrope", "su", "yarn"}) {
    json["rope_scaling"]["type"] = type;
    const auto config = parse(json);
    ASSERT_TRUE(config.ok()) << config.error().to_string();
    EXPECT_EQ(config->rope.type, RopeType::kLongrope);
    EXPECT_EQ(config->rope_switch(), 32);
    EXPECT_NEAR(config->rope.attention_factor, std::sqrt(1.0 + std::log(4.0) / std::log(32.0)), 1e-15);
    const std::vector<double> few = rope_inverse_frequencies(config->rope, config->head_dim, 32);
    const std::vector<double> many = rope_inverse_frequencies(config->rope, config->head_dim, 33);
    ASSERT_EQ(few.size(), 2U);  // theta^(-2i/4), over the factor
    EXPECT_NEAR(few[0], 1.0, 1e-15);
    EXPECT_NEAR(few[1], 0.01 / 2.0, 1e-15);
    EXPECT_NEAR(many[0], 1.0 / 1.5, 1e-15);
    EXPECT_NEAR(many[1], 0.01 / 4.0, 1e-15);
  }
  Json fresh = json;
  fresh.erase("rope_scaling");
  fresh.erase("partial_rotary_factor");
  fresh["rope_parameters"] = {{"rope_type", "longrope"},      {"rope_theta", 10000.0},
                              {"short_factor", {1.0, 2.0}},   {"long_factor", {1.5, 4.0}},
                              {"partial_rotary_factor", 0.5}, {"original_max_position_embeddings", 7}};
  EXPECT_EQ(parse(fresh)->rope, parse(json)->rope);
  json.erase("original_max_position_embeddings");
  EXPECT_EQ(parse(json)->rope_switch(), 4096);
  EXPECT_EQ(parse(json)->rope.attention_factor, 1.0);  // the model is not longer than that
  json["rope_scaling"]["attention_factor"] = 1.25;
  EXPECT_EQ(parse(json)->rope.attention_factor, 1.25);
  json["rope_scaling"]["short_factor"] = {1.0, 0.0};
  expect_refused(json, "rope_scaling.short_factor");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  expect_refused(json, "rope_scaling.type");
}

// Other families may have it too. The inner original_max_position_embeddings counts if there is no outer one.
TEST(ModelConfig, LongropeOfOtherFamilies) {
  Json json = base();
  json["rope_parameters"] = {
      {"rope_type", "longrope"},    {"rope_theta", 10000.0},     {"factor", 2.0},
      {"short_factor", {1.0, 1.0}}, {"long_factor", {2.0, 3.0}}, {"original_max_position_embeddings", 16}};
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->rope_switch(), 16);
  EXPECT_NEAR(config->rope.attention_factor, std::sqrt(1.0 + std::log(2.0) / std::log(16.0)), 1e-15);
  json["model_type"] = "gemma3_text";
  json.erase("architectures");
  json["head_dim"] = 4;
  json["rope_parameters"] = {{"full_attention", json["rope_parameters"]}};
  expect_refused(json, "rope_parameters");
}

std::vector<int64_t> windows_of(Json json, const char* model_type) {
  json["model_type"] = model_type;
  json.erase("architectures");
  const auto config = parse(json);
  EXPECT_TRUE(config.ok()) << config.error().to_string();
  return config.ok() ? config->windows : std::vector<int64_t>{-1};
}

TEST(ModelConfig, WindowsByFamily) {
  using Windows = std::vector<int64_t>;
  Json json = base();
  json["sliding_window"] = 7;
  EXPECT_EQ(windows_of(json, "qwen2"), Windows());  // use_sliding_window is not set
  EXPECT_EQ(windows_of(json, "llama"), Windows());
  EXPECT_EQ(windows_of(json, "mistral"), Windows({7, 7}));
  EXPECT_EQ(windows_of(json, "phi3"), Windows({7, 7}));
  EXPECT_EQ(windows_of(json, "gemma2"), Windows({7, 0}));
  EXPECT_EQ(windows_of(json, "gemma3_text"), Windows({7, 7}));  // every sixth layer is full
  EXPECT_EQ(windows_of(base(), "mistral"), Windows({4096, 4096}));
  EXPECT_EQ(windows_of(base(), "phi3"), Windows());
  json["use_sliding_window"] = true;
  EXPECT_EQ(windows_of(json, "qwen3"), Windows());  // max_window_layers is 28
  json["max_window_layers"] = 1;
  EXPECT_EQ(windows_of(json, "qwen3"), Windows({0, 7}));
  json["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  EXPECT_EQ(windows_of(json, "qwen2"), Windows({7, 0}));
  json["sliding_window_pattern"] = 2;
  json.erase("layer_types");
  EXPECT_EQ(windows_of(json, "gemma3_text"), Windows({7, 0}));
}

TEST(ModelConfig, DefaultsOfFamiliesForAbsentKeys) {
  Json json = base();
  json.erase("num_key_value_heads");
  json["model_type"] = "gemma2";
  json["num_attention_heads"] = 4;
  json.erase("architectures");
  const auto gemma = parse(json);
  ASSERT_TRUE(gemma.ok()) << gemma.error().to_string();
  EXPECT_TRUE(gemma->tie_word_embeddings);
  EXPECT_EQ(gemma->head_dim, 256);
  EXPECT_EQ(gemma->num_kv_heads, 4);
  EXPECT_EQ(gemma->eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(gemma->pad_token_id, 0);
  EXPECT_DOUBLE_EQ(gemma->attention_softcap, 50.0);
  EXPECT_DOUBLE_EQ(gemma->final_softcap, 30.0);
  EXPECT_DOUBLE_EQ(gemma->score_scale(), 1.0 / 16.0);
  json["model_type"] = "llama";
  json["eos_token_id"] = nullptr;
  const auto llama = parse(json);
  ASSERT_TRUE(llama.ok()) << llama.error().to_string();
  EXPECT_EQ(llama->num_kv_heads, 4);
  EXPECT_TRUE(llama->eos_token_ids.empty());
  EXPECT_EQ(llama->bos_token_id, 1);
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

// Published files of stretched models often keep the length before: Vicuna-16k has 4096 and linear 4, Qwen2.5 with its
// yarn 32768 and 4.
TEST(ModelConfig, RopesThatStretchTakeLongerSequences) {
  const auto length = [](const Json& scaling) {
    Json json = base();
    json["max_position_embeddings"] = 100;
    json["rope_scaling"] = scaling;
    const auto config = parse(json);
    EXPECT_TRUE(config.ok()) << config.error().to_string();
    return config.ok() ? config->max_length() : -1;
  };
  EXPECT_EQ(length(nullptr), 100);
  EXPECT_EQ(length({{"type", "linear"}, {"factor", 4.0}}), 400);
  EXPECT_EQ(length({{"type", "linear"}, {"factor", 0.5}}), 100);
  EXPECT_EQ(length({{"type", "linear"}, {"factor", 1e300}}), 1'000'000'000'000);
  EXPECT_EQ(length({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 100}}), 400);
  EXPECT_EQ(length({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 25}}), 100);
  // Its rotation depends on the current length, so that one sequence would need several.
  EXPECT_EQ(length({{"type", "dynamic"}, {"factor", 4.0}}), 100);
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
