// See nccl_rendezvous.h. The pickle is that of a ctypes.Structure: _ctypes._unpickle(class, (state, bytes)), in protocol 3.
#include "nccl_rendezvous.h"

#include <cstddef>

namespace mortise {

std::string pickled_unique_id(const std::string& id) {
  std::string out = "\x80\x03";                             // PROTO 3
  out += "c_ctypes\n_unpickle\n";                            // GLOBAL: the function
  out += "cvllm.distributed.device_communicators.pynccl_wrapper\nncclUniqueId\n";  // GLOBAL: the class
  out += "}";                                                // EMPTY_DICT: attributes of the object
  out += "C";                                                // SHORT_BINBYTES
  out += static_cast<char>(id.size());
  out += id;
  out += "\x86\x86R.";  // TUPLE2 (state), TUPLE2 (arguments), REDUCE, STOP
  return out;
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
