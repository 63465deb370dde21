// mortise-fetch: one HTTP transfer for `mortise`. The only program that links libcurl, so that TLS and HTTP are parsed in
// a process of their own.
//
//   mortise-fetch URL FILE MAX_BYTES SLOW_MS   one file for `mortise pack`, without redirects
//   mortise-fetch --request FILE               a transfer from a hub of models (core/hub/transfer.h)
//
// It gives up if less than 1 KiB a second arrives for SLOW_MS. The caller has checked the URL. SSL_CERT_FILE and
// SSL_CERT_DIR name certificate authorities, as for the program curl.
//
// First form: it writes at most MAX_BYTES to FILE. Exit codes: 0 done, 44 there is no such file (HTTP 404), 1 anything
// else, with a line of reason on standard error.
// Second form: see Request below. Exit codes: 0 the server answered, with any status; 1 it did not, with the reason.
#include <curl/curl.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

constexpr int kNotFound = 44;
constexpr long kSlowBytesPerSecond = 1024;
constexpr long kMaxRedirects = 5;

// A transfer, as lines "name value" of a file. `header` may stand several times.
struct Request {
  std::string url, file, answer;  // where the body goes, and status and headers of the last response
  bool head = false;              // no body
  bool follow = false;            // redirects; the header Authorization stays with the first host
  unsigned long long offset = 0;  // bytes that the file has already
  unsigned long long most = 0;    // that the file may have in the end
  long slow_ms = 20'000;
  curl_slist* headers = nullptr;
};

struct Transfer {
  CURL* curl = nullptr;
  const Request* request = nullptr;
  std::FILE* file = nullptr;
  unsigned long long left = 0;
  bool began = false;  // the first bytes of the body of a good answer were seen
  bool too_large = false;
  std::string headers;  // the headers of the response that is being read, names in small letters
};

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

long status_of(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

// The body of an answer that is no success is of no use: it must not get into the file. A server that sends the whole file
// although a part was asked for starts it again.
size_t take_body(char* bytes, size_t size, size_t count, void* out) noexcept {
  auto* transfer = static_cast<Transfer*>(out);
  const size_t total = size * count;
  const long status = status_of(transfer->curl);
  if (status != 200 && status != 206) return total;
  if (!transfer->began && status == 200 && transfer->request->offset > 0) {
    if (std::freopen(nullptr, "wb", transfer->file) == nullptr) return 0;
    transfer->left += transfer->request->offset;
  }
  transfer->began = true;
  transfer->too_large = total > transfer->left;
  if (transfer->too_large) return 0;
  transfer->left -= total;
  return std::fwrite(bytes, 1, total, transfer->file);
}

size_t take_header(char* bytes, size_t size, size_t count, void* out) noexcept {
  auto* transfer = static_cast<Transfer*>(out);
  std::string line(bytes, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (line.compare(0, 5, "HTTP/") == 0) {
    transfer->headers.clear();  // those of a redirect do not count
  } else if (const size_t colon = line.find(':'); colon != std::string::npos && transfer->headers.size() < (1U << 18)) {
    for (size_t i = 0; i < colon; ++i) line[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(line[i])));
    transfer->headers += line + "\n";
  }
  return size * count;
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

void set_options(Transfer& transfer) {
  CURL* curl = transfer.curl;
  const Request& request = *transfer.request;
  const bool is_http = request.url.compare(0, 7, "http://") == 0;
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");  // the caller lets http to this machine through
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, is_http ? "http,https" : "https");
  if (is_http) curl_easy_setopt(curl, CURLOPT_PROXY, "");  // this machine needs none
  take_certificates(curl);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.follow ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, request.headers);
  if (request.offset > 0) curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(request.offset));
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, request.slow_ms);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, request.slow_ms < 1000 ? 1L : request.slow_ms / 1000);
  curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(request.most));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "mortise");
}

// 0 if there is an answer; its status goes to `status`.
int perform(Transfer& transfer, long& status) {
  transfer.curl = curl_easy_init();
  if (transfer.curl == nullptr) return fail("libcurl cannot start");
  char reason[CURL_ERROR_SIZE] = "";
  set_options(transfer);
  curl_easy_setopt(transfer.curl, CURLOPT_ERRORBUFFER, reason);
  const CURLcode code = curl_easy_perform(transfer.curl);
  status = status_of(transfer.curl);
  curl_easy_cleanup(transfer.curl);
  if (transfer.too_large || code == CURLE_FILESIZE_EXCEEDED)
    return fail("the file is larger than " + std::to_string(transfer.request->most) + " bytes");
  if (code == CURLE_OPERATION_TIMEDOUT) return fail("the server is too slow: " + std::string(reason));
  // What the file has already is all that there is, or the server takes no ranges: the caller sees the status.
  if (code == CURLE_RANGE_ERROR && status != 0) return 0;
  if (code != CURLE_OK) return fail(*reason != 0 ? reason : curl_easy_strerror(code));
  return 0;
}

int fetch_file(Request request) {
  Transfer transfer;
  transfer.request = &request;
  transfer.file = std::fopen(request.file.c_str(), "wbe");
  transfer.left = request.most;
  if (transfer.file == nullptr) return fail("cannot write " + request.file);
  long status = 0;
  int code = perform(transfer, status);
  if (code == 0 && status == 404) code = kNotFound;
  if (code == 0 && status != 200) code = fail("the server answers with HTTP status " + std::to_string(status));
  if (std::fclose(transfer.file) != 0 && code == 0) return fail("cannot write " + request.file);
  return code;
}

bool read_request(const char* path, Request& request) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) return false;
    const std::string name = line.substr(0, space), value = line.substr(space + 1);
    if (name == "url")
      request.url = value;
    else if (name == "file")
      request.file = value;
    else if (name == "answer")
      request.answer = value;
    else if (name == "head")
      request.head = value == "1";
    else if (name == "follow")
      request.follow = value == "1";
    else if (name == "offset")
      request.offset = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "most")
      request.most = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "slow_ms")
      request.slow_ms = std::strtol(value.c_str(), nullptr, 10);
    else if (name == "header")
      request.headers = curl_slist_append(request.headers, value.c_str());
    else
      return false;
  }
  return !request.url.empty() && !request.file.empty() && !request.answer.empty();
}

int answer_request(const char* path) {
  Request request;
  if (!read_request(path, request)) return fail(std::string("cannot read the request ") + path);
  Transfer transfer;
  transfer.request = &request;
  transfer.file = std::fopen(request.file.c_str(), request.offset > 0 ? "abe" : "wbe");
  transfer.left = request.most - request.offset;
  if (transfer.file == nullptr) return fail("cannot write " + request.file);
  long status = 0;
  const int code = perform(transfer, status);
  curl_slist_free_all(request.headers);
  if (std::fclose(transfer.file) != 0) return fail("cannot write " + request.file);
  if (code != 0) return code;
  std::ofstream out(request.answer);
  out << "status " << status << "\n" << transfer.headers;
  out.close();
  return out ? 0 : fail("cannot write " + request.answer);
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the transfer ends with the program that asked for it
  curl_global_init(CURL_GLOBAL_DEFAULT);
  if (argc == 3 && std::strcmp(argv[1], "--request") == 0) return answer_request(argv[2]);
  if (argc != 5) return fail("usage: mortise-fetch URL FILE MAX_BYTES SLOW_MS, or mortise-fetch --request FILE");
  Request request;
  request.url = argv[1];
  request.file = argv[2];
  request.most = std::strtoull(argv[3], nullptr, 10);
  request.slow_ms = std::strtol(argv[4], nullptr, 10);
  return fetch_file(request);
}
