// libmortise_cudnn.so: attention by cudnn-frontend. See cudnn_attention.h.
//
// The headers look up cuDNN's and CUDA's functions when they are called, so the module links neither.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "model/layers/cudnn_attention.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // NOLINT: the name that the headers declare
}

namespace mortise {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Dims = std::vector<int64_t>;

// Names of a graph's tensors.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kQueryLengths,
  kKeyLengths,
  kQueryOffsets,
  kKeyOffsets,
  kLseOffsets
};

enum class Pass { kForward, kBackward };

void check(fe::error_t error) {
  TORCH_CHECK(error.is_good(), "cuDNN cannot compute this attention: ", error.get_message(),
              " (needs bfloat16 and compute capability 9.0 or newer)");
}

// A graph for one pass, whose tensors have the names above.
class Builder {
 public:
  // `device`: what to plan for in place of the GPU of the handle. Operations look at it when they are added.
  Builder(const CudnnSizes& sizes, Pass pass, const std::shared_ptr<fe::DeviceProperties>& device = nullptr,
          int compute_capability = 0)
      : s_(sizes), pass_(pass) {
    if (device != nullptr) graph_->set_device_properties(device).set_sm_version(compute_capability);
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    query_offsets_ = row(kQueryOffsets, s_.sequences + 1, fe::DataType_t::INT64);
    key_offsets_ = row(kKeyOffsets, s_.sequences + 1, fe::DataType_t::INT64);
    lse_offsets_ = row(kLseOffsets, s_.sequences + 1, fe::DataType_t::INT64);
  }

  std::shared_ptr<fe::graph::Graph> make() {
    const Tensor q = graph_->tensor(queries(kQ)), k = graph_->tensor(keys(kK)), v = graph_->tensor(keys(kV));
    if (pass_ == Pass::kForward) {
      auto options = with_mask(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true));
      const auto [out, lse] = graph_->sdpa(q, k, v, options);
      give(out, queries(kOut));
      give(lse, stats());
      return graph_;
    }
    auto options = with_mask(fe::graph::SDPA_backward_attributes().set_name("attention_backward"));
    options.set_deterministic_algorithm(true)
        .set_max_total_seq_len_q(s_.num_queries)
        .set_max_total_seq_len_kv(s_.num_keys);
    const auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, graph_->tensor(queries(kOut)),
                                                    graph_->tensor(queries(kDOut)), graph_->tensor(stats()), options);
    give(dq, queries(kDQ));
    give(dk, keys(kDK));
    give(dv, keys(kDV));
    return graph_;
  }

 private:
  using Attributes = fe::graph::Tensor_attributes;

  static Attributes described(Uid uid, const Dims& dims, const Dims& strides, fe::DataType_t type) {
    return Attributes()
        .set_uid(uid)
        .set_name(std::to_string(uid))
        .set_dim(dims)
        .set_stride(strides)
        .set_data_type(type);
  }
  Tensor row(Uid uid, int64_t count, fe::DataType_t type) {
    return graph_->tensor(described(uid, {count, 1, 1, 1}, {1, 1, 1, 1}, type));
  }
  // [tokens, heads, D] of all sequences, end to end.
  [[nodiscard]] Attributes heads_of(Uid uid, int64_t heads, int64_t longest, const Tensor& offsets) const {
    const int64_t token = heads * s_.dim;
    return described(uid, {s_.sequences, heads, longest, s_.dim}, {longest * token, s_.dim, token, 1},
                     fe::DataType_t::BFLOAT16)
        .set_ragged_offset(offsets);
  }
  [[nodiscard]] Attributes queries(Uid uid) const { return heads_of(uid, s_.heads, s_.most_queries, query_offsets_); }
  [[nodiscard]] Attributes keys(Uid uid) const { return heads_of(uid, s_.kv_heads, s_.most_keys, key_offsets_); }
  [[nodiscard]] Attributes stats() const {
    return described(kLse, {s_.sequences, s_.heads, s_.most_queries, 1}, {s_.most_queries * s_.heads, 1, s_.heads, 1},
                     fe::DataType_t::FLOAT)
        .set_ragged_offset(lse_offsets_);
  }
  static void give(const Tensor& result, Attributes as) {
    result->set_output(true)
        .set_uid(as.get_uid())
        .set_dim(as.get_dim())
        .set_stride(as.get_stride())
        .set_data_type(as.get_data_type());
    result->set_ragged_offset(as.get_ragged_offset());
  }
  // Each query sees the keys up to its own, the last ones of its sequence.
  template <class Options>
  Options with_mask(Options options) {
    options.set_attn_scale(static_cast<float>(s_.scale))
        .set_padding_mask(true)
        .set_seq_len_q(row(kQueryLengths, s_.sequences, fe::DataType_t::INT32))
        .set_seq_len_kv(row(kKeyLengths, s_.sequences, fe::DataType_t::INT32))
        .set_causal_mask_bottom_right(true);
    if (s_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
    return options;
  }

  CudnnSizes s_;
  Pass pass_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
  Tensor query_offsets_, key_offsets_, lse_offsets_;
};

template <class T>
at::Tensor pinned_copy(const std::vector<T>& numbers, const at::Tensor& like) {
  const at::Tensor host = at::empty({static_cast<int64_t>(numbers.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(numbers.begin(), numbers.end(), host.mutable_data_ptr<T>());
  return host.pin_memory().to(host.options().device(like.device()), /*non_blocking=*/true);
}

std::vector<int32_t> padded(const std::vector<int64_t>& lengths, int64_t sequences) {
  std::vector<int32_t> out(lengths.begin(), lengths.end());
  out.resize(static_cast<size_t>(sequences), 0);
  return out;
}

class Frontend final : public CudnnAttention {
 public:
  ~Frontend() override {
    if (handle_ != nullptr) (void)fe::detail::destroy_handle(handle_);
  }

  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const SegmentLengths& lengths, const AttentionShape& shape) override {
    const at::Tensor out = at::empty_like(q), lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
    run(Pass::kForward, {{kQ, q}, {kK, k}, {kV, v}, {kOut, out}, {kLse, lse}}, lengths, shape);
    return {out, lse};
  }

  std::array<at::Tensor, 3> backward(const std::array<at::Tensor, 3>& qkv, const at::Tensor& out, const at::Tensor& lse,
                                     const at::Tensor& d_out, const SegmentLengths& lengths,
                                     const AttentionShape& shape) override {
    const auto& [q, k, v] = qkv;
    std::array<at::Tensor, 3> grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
    run(Pass::kBackward,
        {{kQ, q},
         {kK, k},
         {kV, v},
         {kOut, out},
         {kLse, lse},
         {kDOut, d_out},
         {kDQ, grads[0]},
         {kDK, grads[1]},
         {kDV, grads[2]}},
        lengths, shape);
    return grads;
  }

  std::string why_not(const CudnnSizes& sizes, const std::string& properties, int compute_capability) override {
    const auto device = std::make_shared<fe::DeviceProperties>();
    fe::error_t error = device->deserialize(std::vector<uint8_t>(properties.begin(), properties.end()));
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      if (error.is_bad()) break;
      const auto graph = Builder(sizes, pass, device, compute_capability).make();
      if (error.is_good()) error = graph->validate();
      if (error.is_good()) error = graph->build_operation_graph();
      if (error.is_good()) error = graph->create_execution_plans({fe::HeurMode_t::A});
      if (error.is_good()) error = graph->check_support();
      if (error.is_good() && graph->get_execution_plan_count() == 0) return "cuDNN names no engine";
    }
    return error.is_good() ? std::string() : error.get_message();
  }

 private:
  const fe::graph::Graph& planned(const CudnnSizes& sizes, Pass pass) {
    std::shared_ptr<fe::graph::Graph>& graph = graphs_[{sizes, pass}];
    if (graph != nullptr) return *graph;
    const auto made = Builder(sizes, pass).make();
    check(made->build(handle_, {fe::HeurMode_t::A}));
    graph = made;
    return *graph;
  }

  void run(Pass pass, const std::vector<std::pair<Uid, at::Tensor>>& tensors, const SegmentLengths& lengths,
           const AttentionShape& shape) {
    const CudnnSizes sizes = cudnn_sizes(lengths, shape);
    const at::Tensor& like = tensors.front().second;
    const c10::DeviceGuard guard(like.device());  // the handle and its plans are for the current GPU
    if (handle_ == nullptr) {
      TORCH_CHECK(fe::detail::create_handle(&handle_) == CUDNN_STATUS_SUCCESS, "cuDNN does not start on this GPU");
    }
    void* const stream = c10::impl::VirtualGuardImpl(like.device().type()).getStream(like.device()).native_handle();
    TORCH_CHECK(fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream)) == CUDNN_STATUS_SUCCESS,
                "cuDNN does not take the stream");
    const fe::graph::Graph& graph = planned(sizes, pass);
    const auto begins = [&](const std::vector<int64_t>& of, int64_t width) {
      return pinned_copy(cudnn_offsets(of, sizes.sequences, width), like);
    };
    std::vector<std::pair<Uid, at::Tensor>> all = tensors;
    all.insert(all.end(), {{kQueryLengths, pinned_copy(padded(lengths.queries, sizes.sequences), like)},
                           {kKeyLengths, pinned_copy(padded(lengths.keys, sizes.sequences), like)},
                           {kQueryOffsets, begins(lengths.queries, sizes.heads * sizes.dim)},
                           {kKeyOffsets, begins(lengths.keys, sizes.kv_heads * sizes.dim)},
                           {kLseOffsets, begins(lengths.queries, sizes.heads)}});
    std::unordered_map<int64_t, void*> places;
    for (const auto& [uid, tensor] : all) places[uid] = tensor.mutable_data_ptr();
    int64_t bytes = 0;
    check(graph.get_workspace_size(bytes));
    const at::Tensor workspace = at::empty({bytes}, like.options().dtype(at::kByte));
    check(graph.execute(handle_, places, workspace.mutable_data_ptr()));
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<std::pair<CudnnSizes, Pass>, std::shared_ptr<fe::graph::Graph>> graphs_;
};

}  // namespace
}  // namespace mortise

extern "C" __attribute__((visibility("default"))) mortise::CudnnAttention* mortise_cudnn_attention(std::string* error) {
  // It came with libtorch's CUDA half.
  cudnn_frontend::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  if (cudnn_frontend::cudnn_dlhandle != nullptr) return new mortise::Frontend();
  *error = "cuDNN (libcudnn.so.9) is not loaded";
  return nullptr;
}
