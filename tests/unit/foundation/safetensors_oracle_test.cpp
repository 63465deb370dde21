// Mutated files, compared with the safetensors package. Files that both accept have the same tensors, we accept nothing
// that the package refuses, and a list has what only we refuse. 20,000 files; a million with MORTISE_LONG. Needs a
// Python with safetensors in MORTISE_ORACLES_PYTHON; without it the test is skipped and says so.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "foundation/base/rng.h"
#include "foundation/base/text.h"
#include "foundation/formats/safetensors.h"
#include "foundation/formats/sha256.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

// Stricter than the package on purpose: words of our refusal, and what the package makes of such a file.
constexpr std::string_view kStricter[] = {
    "duplicate key",                    // the package keeps one of the two
    "has the unknown member",           // ignored there
    "does not start with '{'",          // white space before the header passes there
    "unknown dtype",                    // its 4-, 6- and 8-bit floats
    "more than 16 axes",                // any number there
    "'__metadata__' is not an object",  // null is as good as absent there
    "is not described by an object",    // a list of the three members passes there
    "has no dtype",                     // {"F32": null} passes there
    "not made of whole numbers",        // sizes of 2^63 and more, next to a 0
    "overflows",                        // the same
    "nested deeper",                    // inside members that it ignores
};

std::string file_of(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + std::string(header) + std::string(data);
}

// Sound files to start from: every dtype, and a few tensors with empty ones and metadata among them.
std::vector<std::string> seeds() {
  const std::string small =
      "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
      "\"c\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[8,10]}}";
  return {*default_env().read_file(Path(MORTISE_SOURCE_DIR) / "tests/golden/formats/all_dtypes.safetensors"),
          file_of(small, "0123456789"),
          file_of("{\"x\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", "ab"), file_of("{}", "")};
}

class Mutator {
 public:
  Mutator(RandomStream& random, const std::string& file) : random_(random) {
    uint64_t size = 0;
    std::memcpy(&size, file.data(), 8);
    header_ = file.substr(8, size);
    data_ = file.substr(8 + size);
  }

  std::string mutate() {
    for (uint64_t edits = 1 + random_.next_below(3); edits > 0; --edits) edit();
    std::string file = file_of(header_, data_);
    if (random_.next_below(50) == 0) file[random_.next_below(8)] = static_cast<char>(random_.next_u32());
    if (random_.next_below(50) == 0) file.resize(random_.next_below(file.size() + 1));
    return file;
  }

 private:
  size_t place() { return static_cast<size_t>(random_.next_below(header_.size() + 1)); }

  void edit() {
    static constexpr std::string_view kPieces[] = {"0",
                                                   "1",
                                                   "2",
                                                   "8",
                                                   "18446744073709551615",
                                                   "9223372036854775808",
                                                   "[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   " ",
                                                   "-",
                                                   ".5",
                                                   "null",
                                                   "\\u0061",
                                                   "\"x\":1,",
                                                   "F32",
                                                   "F4",
                                                   "\xC3\xA9",
                                                   "[0,0]",
                                                   "\"__metadata__\":{},"};
    const size_t at = place();
    switch (random_.next_below(8)) {
      case 0:
        if (at < header_.size()) header_[at] = static_cast<char>(random_.next_u32());
        break;
      case 1:
        header_.insert(at, kPieces[random_.next_below(std::size(kPieces))]);
        break;
      case 2:
        if (at < header_.size()) header_.erase(at, 1 + random_.next_below(4));
        break;
      case 3: {  // a piece of the header once more, elsewhere
        const std::string piece = header_.substr(at, random_.next_below(40));
        header_.insert(place(), piece);
        break;
      }
      case 4:
      case 5:
        change_number();
        break;
      case 6:
        data_.resize(data_.size() + random_.next_below(3), 'd');
        break;
      default:
        data_.resize(data_.size() - std::min<size_t>(data_.size(), random_.next_below(3)));
        break;
    }
  }

  // One whole number of the header becomes another.
  void change_number() {
    size_t at = place();
    while (at < header_.size() && (header_[at] < '0' || header_[at] > '9')) ++at;
    size_t end = at;
    while (end < header_.size() && header_[end] >= '0' && header_[end] <= '9') ++end;
    if (at == end) return;
    static constexpr std::string_view kNumbers[] = {"0", "1", "2", "3", "4", "8", "10", "16", "4294967296"};
    header_.replace(at, end - at, kNumbers[random_.next_below(std::size(kNumbers))]);
  }

  RandomStream& random_;
  std::string header_;
  std::string data_;
};

// As safetensors_oracle.py digests a file; "-" and the reason where we refuse it.
struct Verdict {
  std::string digest = "-";
  std::string reason;
};

Verdict judge(const std::string& file) {
  auto content = parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "mutated");
  if (!content.ok()) return {"-", content.error().to_string()};
  std::ranges::sort(content->tensors, {}, &TensorView::name);
  Sha256 digest;
  for (const TensorView& tensor : content->tensors) {
    std::vector<std::string> sizes;
    for (const int64_t size : tensor.shape) sizes.push_back(std::to_string(size));
    for (const std::string& text : {tensor.name, std::string(dtype_name(tensor.dtype)), join(sizes, ",")}) {
      digest.update(text);
      digest.update(std::string_view("\0", 1));
    }
    digest.update(tensor.bytes);
  }
  return {to_hex(digest.finish()), ""};
}

struct Tally {
  int both_accept = 0;
  int both_refuse = 0;
  std::map<std::string, int> stricter;
};

void compare(const std::string& file, const Verdict& ours, const std::string& theirs, Tally& tally) {
  if (ours.digest == theirs) {
    ++(theirs == "-" ? tally.both_refuse : tally.both_accept);
    return;
  }
  ASSERT_EQ(ours.digest, "-") << "we accept, or read otherwise, what the package says " << theirs << " of: " << file;
  for (const std::string_view words : kStricter) {
    if (ours.reason.find(words) == std::string::npos) continue;
    ++tally.stricter[std::string(words)];
    return;
  }
  FAIL() << "only we refuse: " << ours.reason << " in " << file;
}

TEST(SafetensorsOracle, MutatedFilesAreJudgedAsThePackageDoes) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: the safetensors package did not judge the mutated files";
  }
  constexpr int kBatch = 20'000;
  const int num_batches = std::getenv("MORTISE_LONG") != nullptr ? 50 : 1;
  const std::vector<std::string> start = seeds();
  const test::TempDir dir;
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/foundation/safetensors_oracle.py";
  const std::string command = std::string("'") + python + "' '" + script.string() + "' '" + (dir / "batch").string() +
                              "' '" + (dir / "verdicts").string() + "' 2>&1";
  Tally tally;
  for (int batch = 0; batch < num_batches; ++batch) {
    std::vector<std::string> files;
    std::string joined;
    for (int i = 0; i < kBatch; ++i) {
      const auto sample = static_cast<uint64_t>(batch) * kBatch + static_cast<uint64_t>(i);
      RandomStream random({.seed = 2, .purpose = RandomPurpose::kTest, .sample = sample});
      const std::string& seed = start[random.next_below(start.size())];
      files.push_back(i < static_cast<int>(start.size()) ? start[static_cast<size_t>(i)]
                                                         : Mutator(random, seed).mutate());
      const auto size = static_cast<uint32_t>(files.back().size());
      joined.append(reinterpret_cast<const char*>(&size), sizeof(size));
      joined += files.back();
    }
    dir.write("batch", joined);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const std::string verdicts = dir.read("verdicts");
    size_t at = 0;
    for (const std::string& file : files) {
      const size_t end = verdicts.find('\n', at);
      ASSERT_NE(end, std::string::npos);
      compare(file, judge(file), verdicts.substr(at, end - at), tally);
      if (HasFatalFailure()) return;
      at = end + 1;
    }
    ASSERT_EQ(at, verdicts.size());
  }
  EXPECT_GT(tally.both_accept, kBatch / 100);
  EXPECT_GT(tally.both_refuse, kBatch / 4);
  RecordProperty("both_accept", tally.both_accept);
  RecordProperty("both_refuse", tally.both_refuse);
  for (const auto& [words, count] : tally.stricter) RecordProperty("only we refuse: " + words, count);
}

}  // namespace
}  // namespace mortise
