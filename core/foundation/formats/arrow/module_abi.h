// The C interface between the program and libmortise_arrow.so, which alone uses Arrow's C++ libraries. Both are built
// from this header in one build; the version refuses a module of another build.
//
// A function that fails writes a text into `error` (at most error_bytes, with its end) and gives null or -1. Texts are
// borrowed until the next call on the same rows. Thread rule: one thread per mortise_arrow_rows.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct mortise_arrow_rows;

enum mortise_arrow_format : int32_t { MORTISE_ARROW_PARQUET = 0, MORTISE_ARROW_IPC = 1 };

struct mortise_arrow_module {
  uint32_t version;
  // Opens a file and checks that its columns have a form as JSON.
  mortise_arrow_rows* (*open)(const char* path, int32_t format, char* error, size_t error_bytes);
  // Some next rows, as JSON objects: row i is text[offsets[i]] to text[offsets[i+1]]. Gives their number; 0 at the end.
  int64_t (*next)(mortise_arrow_rows* rows, const char** text, const uint64_t** offsets, char* error,
                  size_t error_bytes);
  // Passes over rows without making JSON of them. Gives their number, smaller at the end.
  int64_t (*skip)(mortise_arrow_rows* rows, int64_t num_rows, char* error, size_t error_bytes);
  void (*close)(mortise_arrow_rows* rows);
};

// The symbol that the module exports.
#define MORTISE_ARROW_MODULE_SYMBOL mortise_arrow_module_table
#define MORTISE_ARROW_MODULE_VERSION 1u
}
