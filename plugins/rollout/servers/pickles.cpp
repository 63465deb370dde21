// See pickles.h. Protocol 3 of pickle; the names of its opcodes are those of Python's pickletools.
#include "pickles.h"

#include <cstddef>
#include <cstdint>

namespace mortise {
namespace {

class Pickle {
 public:
  void global(const char* module, const char* name) { text_ += std::string("c") + module + "\n" + name + "\n"; }
  void empty_dict() { text_ += '}'; }
  void empty_list() { text_ += ']'; }
  void mark() { text_ += '('; }
  void appends() { text_ += 'e'; }
  void set_item() { text_ += 's'; }
  void tuple() { text_ += 't'; }  // has all since the mark
  void tuple2() { text_ += '\x86'; }
  void reduce() { text_ += 'R'; }
  void boolean(bool value) { text_ += value ? '\x88' : '\x89'; }  // NEWTRUE, NEWFALSE
  void integer(std::int64_t value) {                              // LONG1 of 8 bytes
    text_ += "\x8a\x08";
    number(static_cast<std::uint64_t>(value), 8);
  }
  void bytes(const std::string& value) {  // BINBYTES
    text_ += 'B';
    number(value.size(), 4);
    text_ += value;
  }
  void unicode(const std::string& value) {  // BINUNICODE
    text_ += 'X';
    number(value.size(), 4);
    text_ += value;
  }
  std::string end() { return text_ + "."; }

 private:
  void number(std::uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 255U);
  }
  std::string text_ = "\x80\x03";
};

// torch.Size and strides.
void write_size(Pickle& pickle, const std::vector<std::int64_t>& sizes, bool is_size) {
  if (is_size) pickle.global("torch", "Size");
  if (is_size) pickle.mark();
  pickle.mark();
  for (const std::int64_t size : sizes) pickle.integer(size);
  pickle.tuple();
  if (!is_size) return;
  pickle.tuple();
  pickle.reduce();
}

}  // namespace

// A ctypes.Structure: _ctypes._unpickle(class, (attributes, bytes)).
std::string pickled_unique_id(const std::string& id) {
  Pickle out;
  out.global("_ctypes", "_unpickle");
  out.global("vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId");
  out.empty_dict();
  out.bytes(id);
  out.tuple2();
  out.tuple2();
  out.reduce();
  return out.end();
}

std::string pickled_shared_weights(const WeightImage& image, const std::vector<SharedWeight>& shared) {
  Pickle out;
  out.empty_list();
  out.mark();
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const ImageTensor& tensor = image.tensors()[i];
    const SharedWeight& one = shared[i];
    std::vector<std::int64_t> strides(tensor.shape.size(), 1);
    for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
    out.empty_dict();
    out.unicode(one.device_uuid);
    out.global("torch.multiprocessing.reductions", "rebuild_cuda_tensor");
    out.mark();
    out.global("torch", "Tensor");
    write_size(out, tensor.shape, true);
    write_size(out, strides, false);
    out.integer(0);  // its place in the storage
    out.global("torch.storage", "TypedStorage");
    out.global("torch", image.dtype());
    out.integer(one.device);
    out.bytes(one.handle);
    out.integer(std::int64_t(one.num_bytes));
    out.integer(std::int64_t(one.offset));
    out.boolean(false);  // requires_grad
    out.bytes(one.counter);
    out.integer(std::int64_t(one.counter_offset));
    out.bytes(one.event);
    out.boolean(one.waits_for_event);
    out.tuple();
    out.tuple2();
    out.set_item();
  }
  out.appends();
  return out.end();
}

std::string base64_of(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63U];
  }
  return out;
}

}  // namespace mortise
