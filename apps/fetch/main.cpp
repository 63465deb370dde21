// mortise-fetch URL FILE MAX_BYTES SLOW_MS: one file over https, for `mortise pack`. The only program that links libcurl.
//
// It writes at most MAX_BYTES to FILE, follows no redirect, and gives up if less than 1 KiB a second arrives for
// SLOW_MS. Exit codes: 0 done, 44 there is no such file (HTTP 404), 1 anything else, with a line of reason on standard
// error. The caller has checked the URL and limits the whole time. SSL_CERT_FILE and SSL_CERT_DIR name certificate
// authorities, as for the program curl.
#include <curl/curl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kNotFound = 44;
constexpr long kSlowBytesPerSecond = 1024;

struct Output {
  std::FILE* file = nullptr;
  unsigned long long left = 0;
  bool too_large = false;
};

size_t take(char* bytes, size_t size, size_t count, void* out) noexcept {
  auto* output = static_cast<Output*>(out);
  const size_t total = size * count;
  output->too_large = total > output->left;
  if (output->too_large) return 0;
  output->left -= total;
  return std::fwrite(bytes, 1, total, output->file);
}

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

// libcurl reads neither variable by itself. They name the certificates to trust in place of the machine's.
void take_certificates(CURL* curl) {
  const auto take = [&](const char* variable, CURLoption option) {
    const char* path = std::getenv(variable);
    if (path != nullptr && *path != 0) curl_easy_setopt(curl, option, path);
  };
  take("SSL_CERT_FILE", CURLOPT_CAINFO);
  take("SSL_CERT_DIR", CURLOPT_CAPATH);
}

int fetch(const char* url, Output& output, long slow_ms) {
  CURL* curl = curl_easy_init();
  if (curl == nullptr) return fail("libcurl cannot start");
  char reason[CURL_ERROR_SIZE] = "";
  const std::string limit = "the file is larger than " + std::to_string(output.left) + " bytes";
  curl_easy_setopt(curl, CURLOPT_URL, url);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");  // the caller lets http to this machine through
  if (std::strncmp(url, "http://", 7) == 0) curl_easy_setopt(curl, CURLOPT_PROXY, "");  // this machine needs none
  take_certificates(curl);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, slow_ms);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, slow_ms < 1000 ? 1L : slow_ms / 1000);
  curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(output.left));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &output);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "mortise-pack");
  const CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_cleanup(curl);
  if (output.too_large || code == CURLE_FILESIZE_EXCEEDED) return fail(limit);
  if (code == CURLE_OPERATION_TIMEDOUT) return fail("the server is too slow: " + std::string(reason));
  if (code != CURLE_OK) return fail(*reason != 0 ? reason : curl_easy_strerror(code));
  if (status == 404) return kNotFound;
  if (status != 200) return fail("the server answers with HTTP status " + std::to_string(status));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return fail("usage: mortise-fetch URL FILE MAX_BYTES SLOW_MS");
  curl_global_init(CURL_GLOBAL_DEFAULT);
  Output output{std::fopen(argv[2], "wbe"), std::strtoull(argv[3], nullptr, 10), false};
  if (output.file == nullptr) return fail(std::string("cannot write ") + argv[2]);
  const int code = fetch(argv[1], output, std::strtol(argv[4], nullptr, 10));
  if (std::fclose(output.file) != 0 && code == 0) return fail(std::string("cannot write ") + argv[2]);
  return code;
}
