// New weights as a folder of safetensors files that servers on the same disk load.
//
// A tensor is written as it comes; a file's header goes into room that was kept for it. A folder gets its name only when
// it is whole. Only the newest remains, for servers that come back. Cost: one copy of the weights on the disk or in
// shared memory. Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

class WeightFolder {
 public:
  // `parent`: an existing folder that the servers see too. `bfloat16`: rounds the numbers.
  WeightFolder(std::string parent, bool bfloat16);
  WeightFolder(const WeightFolder&) = delete;
  WeightFolder& operator=(const WeightFolder&) = delete;
  ~WeightFolder();  // removes what it has written

  void begin(std::int64_t version);
  void add(std::string_view name, const std::int64_t* shape, std::int64_t num_dims, const float* data);
  // The path of the whole folder. The one before it is still there: forget_old() removes it.
  std::string finish();
  // The same where the tensors are those of a LoRA adapter with this adapter_config.json: a folder in PEFT's form.
  std::string finish_adapter(const std::string& config);
  void forget_old();

 private:
  void open_shard();
  void close_shard();
  void write_text(const char* name, const std::string& text);
  std::string publish();
  void write(const void* data, std::size_t size);
  [[noreturn]] void fail_writing(const std::string& what) const;

  std::string parent_, base_, partial_, whole_, old_;
  bool bfloat16_;
  int fd_ = -1;
  int num_shards_ = 0;
  std::uint64_t shard_bytes_ = 0, total_bytes_ = 0;
  std::string header_, index_;
  std::vector<std::uint16_t> rounded_;
};

}  // namespace mortise
