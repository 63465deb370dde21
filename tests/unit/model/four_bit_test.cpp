// Folders whose matrices are in four bits: what a save writes, training an adapter on one, and damaged folders. (The
// numbers themselves: reference_test.cpp compares tests/golden/models/qwen2_nf4 and llama_fp4 with bitsandbytes.)
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "gradient_fixture.h"
#include "model/model.h"
#include "support/golden_models.h"
#include "torch_helpers.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kFourBitMatrix = "model.layers.0.self_attn.q_proj.weight";

Path four_bit_scratch(const std::string& name) {
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / "four_bit_test" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

// A copy of a golden folder whose tensors `change` has changed.
template <class Change>
Path four_bit_folder(const std::string& name, Change change, const char* golden = "qwen2_nf4") {
  const Path from = test::golden_model(golden), folder = four_bit_scratch(name);
  fs::copy_file(from / "config.json", folder / "config.json");
  const auto file = SafetensorsFile::open(default_env(), from / "model.safetensors");
  std::vector<TensorView> tensors(file->tensors().begin(), file->tensors().end());
  change(tensors);
  EXPECT_TRUE(write_safetensors_file(default_env(), folder / "model.safetensors", tensors).ok());
  return folder;
}

TensorView& tensor_named(std::vector<TensorView>& tensors, const std::string& name) {
  return *std::ranges::find(tensors, name, &TensorView::name);
}

std::string four_bit_error(const Path& folder) {
  const auto model = Model::load(default_env(), folder);
  return model.ok() ? "" : model.error().to_string();
}

TEST(FourBit, ASaveWritesPlainNumbersThatReadBackTheSame) {
  for (const char* golden : {"qwen2_nf4", "gpt_oss_mxfp4"}) {
    const auto model = Model::load(default_env(), test::golden_model(golden));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    for (const char* stored : {"float32", "stored"}) {
      const Path folder = four_bit_scratch(std::string("saved_") + stored);
      const auto saved = model->save(default_env(), folder, {stored});
      ASSERT_TRUE(saved.ok()) << saved.error().to_string();
      EXPECT_EQ(default_env().read_file(folder / "config.json")->find("quantization_config"), std::string::npos);
      const auto back = Model::load(default_env(), folder);
      ASSERT_TRUE(back.ok()) << back.error().to_string();
      for (size_t i = 0; i < model->parameters().size(); ++i)
        EXPECT_CLOSE(back->parameters()[i].tensor, model->parameters()[i].tensor, 0.0);
    }
  }
}

// The numbers of the standard: sign, two bits of exponent, one more; a byte's low half first.
TEST(FourBit, Mxfp4IsReadByTheStandard) {
  std::vector<std::byte> blocks, scales;
  const std::string matrix = "model.layers.0.mlp.experts.down_proj";
  const Path folder = four_bit_folder(
      "mxfp4",
      [&](std::vector<TensorView>& tensors) {
        TensorView& block_view = tensor_named(tensors, matrix + "_blocks");
        TensorView& scale_view = tensor_named(tensors, matrix + "_scales");
        blocks.assign(block_view.bytes.begin(), block_view.bytes.end());
        scales.assign(scale_view.bytes.begin(), scale_view.bytes.end());
        for (size_t i = 0; i < 8; ++i) blocks[i] = static_cast<std::byte>(2 * i + 16 * (2 * i + 1));
        scales[0] = std::byte{130};  // 2^3
        block_view.bytes = blocks;
        scale_view.bytes = scales;
      },
      "gpt_oss_mxfp4");
  const auto model = Model::load(default_env(), folder);
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  const at::Tensor down = model->weights().layers[0].experts.down_EHI;  // [E, in, out]
  const float expected[] = {0, 4, 8, 12, 16, 24, 32, 48, -0.0F, -4, -8, -12, -16, -24, -32, -48};
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(down[0][i][0].item<float>(), expected[i]) << i;
}

TEST(FourBit, DamagedMxfp4IsNamed) {
  const std::string matrix = "model.layers.1.mlp.experts.gate_up_proj";
  const auto with = [&](auto change) {
    return four_bit_error(four_bit_folder("mxfp4_damaged", change, "gpt_oss_mxfp4"));
  };
  const auto without = [&](const std::string& part) {
    return with([&](std::vector<TensorView>& tensors) {
      std::erase_if(tensors, [&](const TensorView& view) { return view.name == matrix + part; });
    });
  };
  EXPECT_THAT(without("_scales"), HasSubstr("'" + matrix + "_scales' is missing"));
  EXPECT_THAT(without("_blocks"), HasSubstr("'" + matrix + "'"));
  const auto reshaped = [&](const std::string& part, std::vector<int64_t> shape) {
    return with([&](std::vector<TensorView>& tensors) { tensor_named(tensors, matrix + part).shape = shape; });
  };
  EXPECT_THAT(reshaped("_blocks", {5, 64, 2, 16}), HasSubstr("the configuration asks for U8 [5, 128, 1, 16]"));
  EXPECT_THAT(reshaped("_scales", {5, 64, 2}), HasSubstr("instead of U8 [5, 128, 1]"));
  const std::vector<std::byte> numbers(5 * 32 * 128 * sizeof(float));
  const auto surplus = with([&](std::vector<TensorView>& tensors) {
    tensors.push_back({"model.layers.1.mlp.experts.surplus_blocks", DType::kU8, {4}, std::span(numbers).first(4)});
  });
  EXPECT_THAT(surplus, HasSubstr("'model.layers.1.mlp.experts.surplus_blocks' is not part of this model"));
  for (const bool is_first : {false, true}) {
    const auto both = with([&](std::vector<TensorView>& tensors) {
      tensors.insert(is_first ? tensors.begin() : tensors.end(), {matrix, DType::kF32, {5, 32, 128}, numbers});
    });
    EXPECT_THAT(both, HasSubstr("the numbers of '" + matrix + "' are in two tensors"));
  }
}

TEST(FourBit, PartsOfAMatrixMayLieInSeveralFiles) {
  std::vector<TensorView> first, second;
  const auto file = SafetensorsFile::open(default_env(), test::golden_model("qwen2_nf4") / "model.safetensors");
  Json index;
  for (const TensorView& view : file->tensors()) {
    const bool is_first = view.name.ends_with(".weight") || view.name.ends_with(".bias");
    (is_first ? first : second).push_back(view);
    index["weight_map"][view.name] = is_first ? "a.safetensors" : "b.safetensors";
  }
  ASSERT_GT(second.size(), 10U);
  const Path folder = four_bit_scratch("two_files");
  fs::copy_file(test::golden_model("qwen2_nf4") / "config.json", folder / "config.json");
  ASSERT_TRUE(write_safetensors_file(default_env(), folder / "a.safetensors", first).ok());
  ASSERT_TRUE(write_safetensors_file(default_env(), folder / "b.safetensors", second).ok());
  std::ofstream(folder / "model.safetensors.index.json") << dump_json(index);
  const auto split = Model::load(default_env(), folder);
  ASSERT_TRUE(split.ok()) << split.error().to_string();
  const auto whole = Model::load(default_env(), test::golden_model("qwen2_nf4"));
  for (size_t i = 0; i < whole->parameters().size(); ++i)
    EXPECT_CLOSE(split->parameters()[i].tensor, whole->parameters()[i].tensor, 0.0);
}

TEST(FourBit, AnAdapterTrainsOnIt) {
  auto model = Model::load(default_env(), test::golden_model("llama_fp4"));
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  ASSERT_TRUE(model->train_lora({.rank = 4, .alpha = 8.0}, 3).ok());
  const Fixture setup = make_setup(Family::kLlama, false);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = model->config().vocab_size});
  const double before = forward_backward(*model, batch, LayerPath::kFast).value;
  {
    const at::NoGradGuard no_grad;
    for (const NamedParameter& parameter : model->trainable())
      parameter.tensor.sub_(parameter.tensor.grad(), /*alpha=*/1e-2);
  }
  model->weights_changed();
  EXPECT_LT(forward_backward(*model, batch, LayerPath::kFast, /*backward=*/false).value, before);
}

TEST(FourBit, DamagedPartsAreNamed) {
  const std::string state_name = kFourBitMatrix + ".quant_state.bitsandbytes__nf4";
  const auto with_state = [&](const std::string& name, std::string text) {
    return four_bit_error(four_bit_folder(name, [&](std::vector<TensorView>& tensors) {
      TensorView& state = tensor_named(tensors, state_name);
      state.bytes = std::as_bytes(std::span<const char>(text));
      state.shape = {static_cast<int64_t>(text.size())};
    }));
  };
  const auto cut = [&](const std::string& part, int64_t size) {
    return four_bit_error(four_bit_folder("cut", [&](std::vector<TensorView>& tensors) {
      TensorView& view = tensor_named(tensors, kFourBitMatrix + part);
      view.shape = {size};
      view.bytes = view.bytes.first(static_cast<size_t>(size) * dtype_bytes(view.dtype));
    }));
  };
  const auto without = [&](const std::string& part) {
    return four_bit_error(four_bit_folder("without", [&](std::vector<TensorView>& tensors) {
      std::erase_if(tensors, [&](const TensorView& view) { return view.name == kFourBitMatrix + part; });
    }));
  };
  EXPECT_THAT(without(".absmax"), HasSubstr("'" + kFourBitMatrix + ".absmax' is missing"));
  EXPECT_THAT(without(".quant_map"), HasSubstr("'" + kFourBitMatrix + ".quant_map' is missing"));
  EXPECT_THAT(without(".nested_absmax"), HasSubstr("'" + kFourBitMatrix + ".nested_absmax' is missing"));
  EXPECT_THAT(cut("", 100), HasSubstr("has 100 bytes for"));
  EXPECT_THAT(cut(".absmax", 3), HasSubstr("its absmax does not hold"));
  EXPECT_THAT(cut(".quant_map", 15), HasSubstr("does not hold 16 numbers in F32"));
  EXPECT_THAT(cut(".nested_quant_map", 255), HasSubstr("does not hold 256 numbers in F32"));
  EXPECT_THAT(with_state("not_json", "{"), HasSubstr(state_name));
  EXPECT_THAT(with_state("list", "[]"), HasSubstr("without a valid blocksize"));
  EXPECT_THAT(with_state("block_0", R"({"blocksize": 0, "dtype": "float32", "shape": [48, 48]})"),
              HasSubstr("without a valid blocksize"));
  EXPECT_THAT(with_state("shape", R"({"blocksize": 64, "dtype": "float32", "shape": [48, 4800000000000]})"),
              HasSubstr("the configuration asks for [48, 48]"));
  EXPECT_THAT(with_state("overflow", R"({"blocksize": 64, "dtype": "float32", "shape": [4611686018427387904, 8]})"),
              HasSubstr("impossible shape"));
  EXPECT_THAT(with_state("dtype", R"({"blocksize": 64, "dtype": "int8", "shape": [48, 48]})"), HasSubstr("int8"));
  EXPECT_THAT(
      with_state("offset", R"({"blocksize": 64, "dtype": "float32", "shape": [48, 48], "nested_blocksize": 256})"),
      HasSubstr("nested_offset"));
}

TEST(FourBit, OtherFormsOfQuantizationAreRefusedByName) {
  for (const auto& [config, expected] : std::vector<std::pair<std::string, std::string>>{
           {R"({"quant_method": "gptq", "bits": 4})", "quantization_config.quant_method' = \"gptq\""},
           {R"({"quant_method": "bitsandbytes", "load_in_8bit": true})", "quantization_config.load_in_4bit"},
           {R"("nf4")", "quantization_config"}}) {
    const Path folder = four_bit_scratch("other");
    fs::copy_file(test::golden_model("qwen2_nf4") / "model.safetensors", folder / "model.safetensors");
    Json json = *parse_json(*default_env().read_file(test::golden_model("qwen2_nf4") / "config.json"), "config.json");
    json["quantization_config"] = *parse_json(config, "test");
    std::ofstream(folder / "config.json") << dump_json(json);
    EXPECT_THAT(four_bit_error(folder), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace mortise
