// See locked_device.h.
#include "support/locked_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace mortise::test {
namespace {

std::atomic<long> num_operators{0}, num_waits{0};
thread_local c10::DeviceIndex current_index = -1;
thread_local int depth_of_operators = 0;  // copies inside them are not of the code under test

// Memory that is mapped twice. Tensors have the addresses of the first mapping, which is locked except while a kernel runs.
// Copies use the second one.
class LockedMemory final : public c10::Allocator {
 public:
  static LockedMemory& instance() {
    static LockedMemory memory;
    return memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const size_t size = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
    char* data = nullptr;
    if (auto& free = free_[size]; !free.empty()) {
      data = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK(used_ + size <= kReserved, "the locked device's memory is full");
      data = area_ + used_;
      used_ += size;
      if (num_open_ > 0) protect(PROT_READ | PROT_WRITE);
    }
    sizes_[data] = size;
    if (size <= kSmall) std::memset(open_view(data), 0xFF, size);  // NaN: whoever reads it before it is written fails
    return {data, data, &release, c10::Device(c10::kPrivateUse1, std::max<c10::DeviceIndex>(current_index, 0))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(instance().open_view(to), instance().open_view(const_cast<void*>(from)), bytes);
  }

  size_t bytes() {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [data, size] : sizes_) sum += size;
    return sum;
  }

  // Where copies find the numbers of a tensor.
  [[nodiscard]] char* open_view(void* data) const { return static_cast<char*>(data) - area_ + open_area_; }

  [[nodiscard]] bool has(const void* address) const { return address >= area_ && address < area_ + kReserved; }

  void open() {
    const std::lock_guard lock(mutex_);
    if (num_open_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--num_open_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr size_t kReserved = size_t{16} << 30;  // addresses; memory is taken page by page
  static constexpr size_t kSmall = size_t{64} << 10;     // bytes that a free allocation keeps

  LockedMemory() : file_(memfd_create("locked device", MFD_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0 && ftruncate(file_, kReserved) == 0, "no memory for the locked device");
    area_ = map(PROT_NONE);
    open_area_ = map(PROT_READ | PROT_WRITE);
  }
  [[nodiscard]] char* map(int rights) const {
    void* const area = mmap(nullptr, kReserved, rights, MAP_SHARED | MAP_NORESERVE, file_, 0);
    TORCH_CHECK(area != MAP_FAILED, "no memory for the locked device");
    return static_cast<char*>(area);
  }
  static void release(void* data) {
    LockedMemory& self = instance();
    const std::lock_guard lock(self.mutex_);
    const auto found = self.sizes_.find(data);
    if (found == self.sizes_.end()) return;
    if (found->second > kSmall) madvise(self.open_view(data), found->second, MADV_REMOVE);
    self.free_[found->second].push_back(static_cast<char*>(data));
    self.sizes_.erase(found);
  }
  void protect(int rights) { TORCH_CHECK(mprotect(area_, used_, rights) == 0, "the locked device cannot be locked"); }

  std::mutex mutex_;
  int file_;
  char *area_ = nullptr, *open_area_ = nullptr;
  size_t used_ = 0;
  std::unordered_map<void*, size_t> sizes_;
  std::unordered_map<size_t, std::vector<char*>> free_;  // by size
  int num_open_ = 0;                                     // kernels that run
};

class LockedGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
 public:
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_index}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumLockedDevices; }

  // Autograd orders its threads by streams and events. Each operator here has ended when it returns, so nothing has to wait.
  c10::Stream getStream(c10::Device device) const noexcept override { return stream_of(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream_of(stream.device()); }
  void record(void** /*event*/, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}

 private:
  static c10::Stream stream_of(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, device); }
};

// Autograd asks whether there is an accelerator.
class LockedHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
};

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &LockedMemory::instance(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &LockedMemory::instance(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the host.
at::Tensor host_view(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  void* const begin = tensor.storage().mutable_data();
  if (begin == nullptr) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  return at::from_blob(
      LockedMemory::instance().open_view(begin) + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()),
      tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (depth_of_operators == 0 && to.is_cpu()) ++num_waits;
  host_view(to).copy_(host_view(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> /*format*/) {
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  int64_t count = 1;
  for (const int64_t one : sizes) count *= one;
  const size_t bytes = static_cast<size_t>(count) * self.element_size();
  TORCH_CHECK(self.storage_offset() == 0, "the locked device does not resize views");
  if (self.storage().nbytes() < bytes) {
    const c10::DeviceGuard guard(self.device());
    self.storage().set_data_ptr_noswap(LockedMemory::instance().allocate(bytes));
    self.storage().set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  TORCH_CHECK(stride.empty() && offset.expect_int() == 0, "the locked device sets whole storages");
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  return self;
}

// Only CUDA has these operators.
at::Tensor product_in(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  return at::mm(a.to(dtype), b.to(dtype));
}
at::Tensor& add_product_in(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype,
                           const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == dtype && out.is_same(self), "the sum is its own start");
  return out.addmm_(a.to(dtype), b.to(dtype), beta, alpha);
}

void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  std::optional<c10::Device> place;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    const bool is_number = tensor.defined() && tensor.dim() == 0;  // CUDA takes numbers of the host
    TORCH_CHECK(!tensor.defined() || is_number || tensor.is_privateuseone(), op.schema().name(),
                ": expected all tensors to be on the device, but argument ", i + count - stack.size(),
                " is on the host");
    if (!tensor.defined() || is_number) continue;
    if (!place) place = tensor.device();
    TORCH_CHECK(tensor.device() == *place, op.schema().name(), ": argument ", i + count - stack.size(), " is on ",
                tensor.device(), ", and another one on ", *place);
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);
  ++num_operators;
  const std::string& name = op.schema().name();
  if (name == "aten::nonzero" || name == "aten::masked_select" || name == "aten::_local_scalar_dense") ++num_waits;
  ++depth_of_operators;
  at::native::cpu_fallback(op, stack);
  --depth_of_operators;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("mm.dtype", product_in);
  m.impl("addmm.dtype_out", add_product_in);
  m.impl("view", at::native::view);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, LockedGuard);

c10::Device locked_device(int index) {
  static const bool registered = [] {
    static LockedHooks hooks;
    c10::SetAllocator(c10::kPrivateUse1, &LockedMemory::instance());
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("locked");
    return true;
  }();
  static_cast<void>(registered);
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

bool is_on_locked_device(const void* address) { return LockedMemory::instance().has(address); }

bool locked_device_is_current() { return current_index >= 0; }

void open_locked_memory() { LockedMemory::instance().open(); }
void close_locked_memory() { LockedMemory::instance().close(); }

size_t bytes_on_locked_device() { return LockedMemory::instance().bytes(); }
long operators_on_locked_device() { return num_operators; }
long waits_for_locked_device() { return num_waits; }

}  // namespace mortise::test
