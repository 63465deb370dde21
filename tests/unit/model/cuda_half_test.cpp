// What a run on a GPU loads, without a GPU: libtorch's CUDA half, the operators that we call, and our own modules next to it.
// The CUDA half is that of the wheel in MORTISE_ORACLES_PYTHON; without it the tests are skipped, aloud. It stays in this
// process, so these tests have a program of their own.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "generate/device/step_graphs.h"
#include "model/device/kernel_table.h"
#include "model/layers/cudnn_attention.h"
#include "model/tensor/torch_version.h"
#include "support/gpu_properties.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

// The folder of Python packages; empty if there is none with our version of libtorch.
fs::path wheels() {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) return {};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(python).parent_path().parent_path() / "lib", none)) {
    const fs::path packages = entry.path() / "site-packages";
    std::ifstream version(packages / "torch/version.py");
    std::stringstream text;
    text << version.rdbuf();
    if (text.str().find("'" + std::string(kTorchVersion)) != std::string::npos &&
        fs::exists(packages / "torch/lib/libtorch_cuda.so"))
      return packages;
  }
  return {};
}

class CudaHalf : public testing::Test {
 protected:
  void SetUp() override {
    packages_ = wheels();
    if (packages_.empty()) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON has no libtorch with CUDA: nothing was loaded";
    ASSERT_NE(dlopen((packages_ / "torch/lib/libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  // A module of this build; null if the build has none.
  static void* load(const char* name) {
    const fs::path path = fs::path(MORTISE_BINARY_DIR) / "lib/mortise" / name;
    if (!fs::exists(path)) return nullptr;
    void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(module, nullptr) << dlerror();
    return module;
  }
  fs::path packages_;
};

struct CalledOperator {
  const char* name;
  const char* overload;
  const char* schema;  // in libtorch 2.11
};
constexpr CalledOperator kCalled[] = {
    {"aten::_flash_attention_forward", "",
     "(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt max_k, float "
     "dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, SymInt? window_size_left=None, SymInt? "
     "window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None) -> (Tensor output, Tensor "
     "softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)"},
    {"aten::_flash_attention_backward", "",
     "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor "
     "cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor rng_state, Tensor unused, *, "
     "float? scale=None, SymInt? window_size_left=None, SymInt? window_size_right=None) -> (Tensor, Tensor, Tensor)"},
    {"aten::_efficient_attention_forward", "",
     "(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? "
     "max_seqlen_q, SymInt? max_seqlen_k, float dropout_p, int custom_mask_type, bool compute_log_sumexp=False, *, "
     "float? scale=None, Tensor? seqlen_k=None, int? window_size=None) -> (Tensor output, Tensor logsumexp, Tensor "
     "philox_seed, Tensor philox_offset, SymInt max_seqlen_batch_q, SymInt max_seqlen_batch_k)"},
    {"aten::_efficient_attention_backward", "",
     "(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor out, Tensor? cu_seqlens_q, "
     "Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, Tensor logsumexp, float dropout_p, Tensor "
     "philox_seed, Tensor philox_offset, int custom_mask_type, bool bias_requires_grad, *, float? scale=None, int? "
     "num_splits_key=None, int? window_size=None, bool shared_storage_dqdkdv=False) -> (Tensor, Tensor, Tensor, "
     "Tensor)"},
    {"aten::mm", "dtype", "(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor"},
    {"aten::addmm", "dtype_out",
     "(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) "
     "-> Tensor(a!)"},
    {"aten::_fused_adamw_", "",
     "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] "
     "max_exp_avg_sqs, Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool "
     "amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()"}};

TEST_F(CudaHalf, OperatorsAreRegisteredWithTheArgumentsThatWePass) {
  for (const CalledOperator& one : kCalled) {
    const auto found = c10::Dispatcher::singleton().findSchema({one.name, one.overload});
    ASSERT_TRUE(found.has_value()) << one.name;
    std::stringstream text;
    text << found->schema();
    const std::string schema = text.str();
    EXPECT_EQ(schema.substr(schema.find('(')), one.schema) << one.name;
    EXPECT_TRUE(found->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << one.name;
  }
}

// What learning and sampling start on CPU tensors by the operators of a device (tests/device/device_tests.cpp): each has a kernel
// for CUDA, or is made of other operators.
TEST_F(CudaHalf, OperatorsOfADeviceHaveAFormForCuda) {
  std::ifstream list(fs::path(MORTISE_SOURCE_DIR) / "tests/device/operators.txt");
  int num_operators = 0;
  for (std::string name; std::getline(list, name); ++num_operators) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto found = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
    ASSERT_TRUE(found.has_value()) << name;
    bool has_form = false;
    for (const c10::DispatchKey key :
         {c10::DispatchKey::CUDA, c10::DispatchKey::CompositeExplicitAutograd,
          c10::DispatchKey::CompositeImplicitAutograd, c10::DispatchKey::CompositeExplicitAutogradNonFunctional})
      has_form = has_form || found->hasKernelForDispatchKey(key);
    EXPECT_TRUE(has_form) << name << " has no form for CUDA";
  }
  EXPECT_GT(num_operators, 80);
}

// All functions of the kernels, as a run on a GPU looks for them.
TEST_F(CudaHalf, OurKernelsAreAllInTheirModule) {
  if (!why_no_gpu_kernels().empty()) GTEST_SKIP() << "this build has no kernels: " << why_no_gpu_kernels();
  EXPECT_NE(device_kernels(at::Device(at::kCUDA, 0)), nullptr);
}

// Their symbols are all there. Without a driver the graphs say so.
TEST_F(CudaHalf, OurModulesFindAllTheirSymbols) {
  for (const char* const name : {"libmortise_nccl.so", "libmortise_cuda.so", "libmortise_cudnn.so"}) load(name);
  void* const graphs = load(kGraphsModule);
  if (graphs == nullptr) GTEST_SKIP() << "this build has no " << kGraphsModule;
  const auto entry = reinterpret_cast<GraphsEntry>(dlsym(graphs, kGraphsEntry));
  ASSERT_NE(entry, nullptr);
  std::string error;
  const std::unique_ptr<StepGraphs> made(entry(0, &error));
  EXPECT_EQ(made == nullptr, !error.empty()) << error;
}

// libtorch's CUDA half has an older cudnn-frontend, whose types of the same names have other sizes. If the module exported
// its templates, the linker would take those of libtorch in their place, and plans for a B200 would read wrong memory.
TEST(CudnnModule, ExportsNothingButItsEntry) {
  const fs::path path = fs::path(MORTISE_BINARY_DIR) / "lib/mortise" / kCudnnModule;
  if (!fs::exists(path)) GTEST_SKIP() << "this build has no " << kCudnnModule;
  const std::string command = "nm -D --defined-only '" + path.string() + "' | cut -d' ' -f3";
  FILE* const names = ::popen(command.c_str(), "r");
  ASSERT_NE(names, nullptr);
  std::string all;
  for (int c = std::fgetc(names); c != EOF; c = std::fgetc(names)) all += static_cast<char>(c);
  EXPECT_EQ(::pclose(names), 0);
  EXPECT_EQ(all, std::string(kCudnnEntry) + "\n");
}

// cuDNN plans the operations for GPUs that are not here: it takes the sizes, layouts, masks and the fixed order of sums, and
// names an engine. To build it would load its code, which needs a driver. The driver's stub is only there to be found.
TEST_F(CudaHalf, CudnnHasEnginesForWhatWeAsk) {
  if (std::string(MORTISE_DRIVER_STUB).empty()) GTEST_SKIP() << "there is no stub of the driver to link with";
  ASSERT_NE(dlopen(MORTISE_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  void* const module = load(kCudnnModule);
  if (module == nullptr) GTEST_SKIP() << "this build has no " << kCudnnModule;
  const auto entry = reinterpret_cast<CudnnEntry>(dlsym(module, kCudnnEntry));
  ASSERT_NE(entry, nullptr);
  std::string error;
  const std::unique_ptr<CudnnAttention> cudnn(entry(&error));
  ASSERT_NE(cudnn, nullptr) << error;
  for (const test::GpuProperties& gpu : {test::kH200, test::kB200}) {
    for (const int64_t dim : {16, 64, 128}) {
      for (const int64_t window : {0, 96}) {
        AttentionShape shape{14, 2, dim, 0.125};
        shape.window = window;
        ASSERT_TRUE(has_cudnn_attention(shape));
        const CudnnSizes sizes = cudnn_sizes({{150, 1, 70, 33, 9}, {150, 200, 270, 33, 9}}, shape);
        EXPECT_EQ(cudnn->why_not(sizes, test::properties_json(gpu), gpu.compute_capability), "")
            << gpu.name << " " << dim << " " << window;
      }
    }
  }
  // What it does not have is an error, and not another result: heads that are too large, and an older architecture.
  const CudnnSizes sizes = cudnn_sizes({{150}, {150}}, {14, 2, 64, 0.125});
  EXPECT_NE(cudnn->why_not(sizes, test::properties_json(test::kA100), test::kA100.compute_capability), "");
}

TEST(CudnnSizes, AreRoundedUpSoThatFewPlansServeAllBatches) {
  const AttentionShape shape{4, 2, 32, 0.17, 300};
  const SegmentLengths lengths{{150, 1, 70}, {150, 200, 270}};
  const CudnnSizes sizes = cudnn_sizes(lengths, shape);
  EXPECT_EQ(sizes, (CudnnSizes{4, 256, 512, 256, 1024, 4, 2, 32, 300, 0.17}));
  EXPECT_EQ(sizes, cudnn_sizes({{149, 2, 70, 1}, {151, 201, 260, 1}}, shape));
  EXPECT_EQ(cudnn_sizes({{100}, {100}}, shape).window, 0);
  EXPECT_EQ(cudnn_offsets(lengths.queries, 4, 4 * 32),
            (std::vector<int64_t>{0, 150 * 128, 151 * 128, 221 * 128, 221 * 128}));
}

TEST(CudnnSizes, CapsSinksAndLargeHeadsAreLeftToOthers) {
  AttentionShape shape{4, 2, 32, 0.17};
  EXPECT_TRUE(has_cudnn_attention(shape));
  shape.softcap = 30.0;
  EXPECT_FALSE(has_cudnn_attention(shape));
  shape.softcap = 0.0;
  for (const int64_t dim : {136, 36}) {
    shape.head_dim = dim;
    EXPECT_FALSE(has_cudnn_attention(shape)) << dim;
  }
}

}  // namespace
}  // namespace mortise
