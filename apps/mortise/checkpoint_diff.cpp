// mortise checkpoint diff: settings, plugins, state and weights that differ between two checkpoints.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>

#include "checkpoint_command.h"
#include "config/load.h"
#include "config/show.h"
#include "foundation/base/shown_text.h"
#include "foundation/base/tensor_pieces.h"
#include "foundation/base/text.h"
#include "model/weights/weight_files.h"
#include "train/resume/checkpointing.h"

namespace mortise {
namespace {

using Texts = std::map<std::string, std::string>;
using Changes = std::map<std::string, ChangedText>;

Changes changes_of(const Texts& before, const Texts& after) {
  Changes out;
  for (const auto& [key, value] : before) {
    const auto it = after.find(key);
    if (it == after.end() || it->second != value) out[key] = {value, it == after.end() ? "" : it->second};
  }
  for (const auto& [key, value] : after) {
    if (!before.contains(key)) out[key] = {"", value};
  }
  return out;
}

Result<Texts> settings_of(Env& env, const Checkpoint& checkpoint) {
  const Path path = TRY(checkpoint.entry(kSettingsFile));
  return flat_settings(TRY(load_config(env, path, {})).config);
}

// "reward match" -> "acme.match 1.0.0 (1a2b..)", from mortise.lock.
Result<Texts> plugins_of(Env& env, const Checkpoint& checkpoint) {
  const Path path = TRY(checkpoint.entry(kPackLockFile));
  const Json lock = TRY(read_json_file(env, path));
  Texts out;
  const Json* uses = json_find(lock, "uses");
  if (uses == nullptr || !uses->is_array()) return out;
  for (const Json& use : *uses) {
    const std::string sha256 = TRY(json_string(use, "sha256", path.string()));
    const std::string kind = TRY(json_string(use, "kind", path.string()));
    const std::string name = TRY(json_string(use, "name", path.string()));
    const std::string pack = TRY(json_string(use, "pack", path.string()));
    const std::string version = TRY(json_string(use, "version", path.string()));
    out[fmt::format("{} {}", kind, name)] = fmt::format("{} {} ({})", pack, version, sha256.substr(0, 12));
  }
  return out;
}

Texts state_of(const Checkpoint& checkpoint) {
  Texts out;
  for (const auto& [object, values] : checkpoint.state().scalars) {
    for (const auto& [key, value] : values) out[fmt::format("{}/{}", object, key)] = state_scalar_text(value);
  }
  return out;
}

// The tensors of the state, and those of each model folder under "FOLDER/name", however many files hold them.
struct Tensors {
  std::vector<SafetensorsFile> files;
  std::map<std::string, TensorView> views;
};

Result<Tensors> tensors_of(Env& env, const Checkpoint& checkpoint) {
  Tensors out;
  for (const TensorView& view : checkpoint.state().tensors) out.views[view.name] = view;
  for (const ManifestEntry& entry : checkpoint.manifest().entries) {
    const Path path(entry.path);
    if (path.extension() != ".safetensors" || path.parent_path().empty()) continue;
    out.files.push_back(TRY(SafetensorsFile::open(env, checkpoint.path() / path)));
    for (const TensorView& view : out.files.back().tensors())
      out.views[fmt::format("{}/{}", path.parent_path().string(), view.name)] = view;
  }
  return out;
}

std::string form_of(const TensorView& view) {
  std::vector<std::string> sizes;
  for (const int64_t size : view.shape) sizes.push_back(std::to_string(size));
  return fmt::format("{} [{}]", dtype_name(view.dtype), join(sizes, ", "));
}

// As many of a tensor's numbers as are compared at once, so that a large model needs no second copy of its weights.
constexpr int64_t kPiece = 1 << 20;

// `count` numbers from `begin` on. A file of another program may not be aligned, so the bytes are copied.
Result<std::vector<std::byte>> piece_of(const TensorView& view, int64_t begin, int64_t count) {
  const size_t width = dtype_bytes(view.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * width);
  TRY(read_tensor_bytes(view, static_cast<uint64_t>(begin) * width, bytes));
  return bytes;
}

at::Tensor doubles_of(std::vector<std::byte>& bytes, DType dtype, int64_t count) {
  return at::from_blob(bytes.data(), {count}, at::TensorOptions().dtype(*torch_type(dtype)))
      .to(at::kDouble, false, /*copy=*/true);
}

void compare_floats(std::vector<std::byte>& a, std::vector<std::byte>& b, DType dtype, int64_t count,
                    ChangedTensor& out) {
  const at::Tensor x = doubles_of(a, dtype, count), y = doubles_of(b, dtype, count);
  const auto* left = x.const_data_ptr<double>();
  const auto* right = y.const_data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    if (left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i]))) continue;
    ++out.num_different;
    const double difference = std::abs(left[i] - right[i]);
    if (std::isnan(difference) || difference > out.max_abs_difference) out.max_abs_difference = difference;
    if (std::isnan(out.max_abs_difference)) out.max_abs_difference = std::numeric_limits<double>::quiet_NaN();
  }
}

void compare_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b, size_t width, ChangedTensor& out) {
  for (size_t offset = 0; offset < a.size(); offset += width) {
    if (std::memcmp(a.data() + offset, b.data() + offset, width) != 0) ++out.num_different;
  }
}

// Nothing where the two hold the same bits.
Result<std::optional<ChangedTensor>> compare_tensor(const std::string& name, const TensorView* a, const TensorView* b) {
  ChangedTensor out{.name = name, .note = {}};
  if (a == nullptr || b == nullptr) {
    out.note = a == nullptr ? "only in the second" : "only in the first";
    return std::optional(out);
  }
  if (a->dtype != b->dtype || a->shape != b->shape) {
    out.note = fmt::format("{} -> {}", form_of(*a), form_of(*b));
    return std::optional(out);
  }
  out.num_numbers = num_elements(a->shape).value_or(0);
  const bool is_floating = torch_type(a->dtype).has_value();
  bool is_same = true;
  for (int64_t begin = 0; begin < out.num_numbers; begin += kPiece) {
    const int64_t count = std::min(kPiece, out.num_numbers - begin);
    std::vector<std::byte> left = TRY(piece_of(*a, begin, count)), right = TRY(piece_of(*b, begin, count));
    if (left == right) continue;
    is_same = false;
    if (is_floating)
      compare_floats(left, right, a->dtype, count, out);
    else
      compare_bytes(left, right, dtype_bytes(a->dtype), out);
  }
  if (is_same) return std::optional<ChangedTensor>();
  if (!is_floating) out.note = "not a floating type";
  if (is_floating && out.num_different == 0) out.note = "equal numbers with other bits (zeros of another sign, or NaN)";
  return std::optional(out);
}

void print_texts(const char* title, const Changes& changes, std::ostream& out) {
  if (changes.empty()) return;
  out << title << "\n";
  for (const auto& [key, change] : changes)
    out << one_line(fmt::format("  {}: {} -> {}", key, change.before.empty() ? "not there" : change.before,
                                change.after.empty() ? "not there" : change.after))
        << "\n";
}

Json texts_json(const Changes& changes) {
  Json out = Json::object();
  const auto value = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  for (const auto& [key, change] : changes) out[key] = Json::array({value(change.before), value(change.after)});
  return out;
}

}  // namespace

Result<CheckpointDifferences> compare_checkpoints(Env& env, const Checkpoint& before, const Checkpoint& after) {
  CheckpointDifferences out;
  out.settings = changes_of(TRY(settings_of(env, before)), TRY(settings_of(env, after)));
  out.plugins = changes_of(TRY(plugins_of(env, before)), TRY(plugins_of(env, after)));
  out.state = changes_of(state_of(before), state_of(after));
  const Tensors first = TRY(tensors_of(env, before));
  const Tensors second = TRY(tensors_of(env, after));
  std::map<std::string, std::pair<const TensorView*, const TensorView*>> pairs;
  for (const auto& [name, view] : first.views) pairs[name].first = &view;
  for (const auto& [name, view] : second.views) pairs[name].second = &view;
  out.num_tensors = static_cast<int64_t>(pairs.size());
  for (const auto& [name, pair] : pairs) {
    if (auto changed = TRY(compare_tensor(name, pair.first, pair.second))) out.tensors.push_back(*std::move(changed));
  }
  return out;
}

Json differences_json(const CheckpointDifferences& differences) {
  Json tensors = Json::array();
  for (const ChangedTensor& tensor : differences.tensors) {
    Json row = {{"name", tensor.name}, {"numbers", tensor.num_numbers}, {"different", tensor.num_different}};
    if (tensor.note.empty()) row["max_abs_difference"] = tensor.max_abs_difference;
    if (!tensor.note.empty()) row["note"] = tensor.note;
    tensors.push_back(std::move(row));
  }
  return {{"same", differences.same()},
          {"settings", texts_json(differences.settings)},
          {"plugins", texts_json(differences.plugins)},
          {"state", texts_json(differences.state)},
          {"num_tensors", differences.num_tensors},
          {"tensors", tensors}};
}

void print_differences(const CheckpointDifferences& differences, std::ostream& out) {
  if (differences.same()) {
    out << fmt::format("The two checkpoints are the same: settings, plugins, state, and {} tensors bit by bit.\n",
                       differences.num_tensors);
    return;
  }
  print_texts("settings", differences.settings, out);
  print_texts("plugins", differences.plugins, out);
  print_texts("state", differences.state, out);
  out << fmt::format("tensors: {} of {} differ\n", differences.tensors.size(), differences.num_tensors);
  for (const ChangedTensor& tensor : differences.tensors) {
    out << "  " << one_line(tensor.name) << ": ";
    if (tensor.num_numbers != 0) out << fmt::format("{} of {} numbers", tensor.num_different, tensor.num_numbers);
    if (tensor.num_numbers != 0 && !tensor.note.empty()) out << ", ";
    out << one_line(tensor.note);
    if (tensor.note.empty()) out << fmt::format(", by at most {:.3g}", tensor.max_abs_difference);
    out << "\n";
  }
}

}  // namespace mortise
