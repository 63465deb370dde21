// The list of harmless variables, and the environment made from it.
#include "plugin/worker/environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace mortise {
namespace {

// A name, or the beginning of names that ends in '*'.
constexpr std::string_view kHarmless[] = {
    // Who and where.
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TMP", "TEMP", "TERM", "NO_COLOR", "HOSTNAME", "XDG_*",
    // Language and time.
    "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR",
    // Libraries, Python and its environments.
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONIOENCODING",
    "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER", "VIRTUAL_ENV", "PYENV_ROOT", "PYENV_VERSION", "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV", "JAVA_HOME",
    // Threads, devices, memory.
    "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_*", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NCCL_*", "MALLOC_*", "GLIBC_TUNABLES",
    // Caches.
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
    "TRANSFORMERS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "NLTK_DATA", "TIKTOKEN_CACHE_DIR",
    // Certificates and proxies. A proxy with a login is withheld.
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "all_proxy",
    "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    // Sanitizers, profiles, ours.
    "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS", "LLVM_PROFILE_FILE", "GCOV_PREFIX",
    "GCOV_PREFIX_STRIP", "MORTISE_PLUGIN_PATH", "MORTISE_SDK_CPU"};

bool has_login(std::string_view value) {
  // A proxy may be written without a scheme.
  return value.find('@') != std::string_view::npos;
}

void append_name(std::string& list, std::string_view name) {
  if (!list.empty()) list += ',';
  list += name;
}

}  // namespace

bool is_harmless_variable(std::string_view name) {
  return std::any_of(std::begin(kHarmless), std::end(kHarmless), [&](std::string_view known) {
    if (known.back() != '*') return name == known;
    return name.starts_with(known.substr(0, known.size() - 1));
  });
}

std::vector<std::string> worker_environment(const char* const* all, const std::vector<std::string>& added) {
  std::vector<std::string> out;
  std::string withheld, given;
  for (; all != nullptr && *all != nullptr; ++all) {
    const std::string_view entry = *all;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (name.size() == entry.size() || name == kAddedNames || name == kWithheldNames) continue;
    if (std::find(added.begin(), added.end(), name) != added.end()) {
      append_name(given, name);
    } else if (!is_harmless_variable(name) || (name.ends_with("proxy") && has_login(entry)) ||
               (name.ends_with("PROXY") && has_login(entry))) {
      append_name(withheld, name);
      continue;
    }
    out.emplace_back(entry);
  }
  if (!given.empty()) out.push_back(fmt::format("{}={}", kAddedNames, given));
  if (!withheld.empty()) out.push_back(fmt::format("{}={}", kWithheldNames, withheld));
  return out;
}

}  // namespace mortise
