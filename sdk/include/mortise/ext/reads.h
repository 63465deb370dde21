/* Plugin extension mortise.reads/1: what an instance with given parameters will read besides its inputs, told
 * before any instance is made.
 *
 * descriptor->get_extension(MORTISE_EXT_READS) returns a `const mortise_reads*`; the descriptor's flags have
 * MORTISE_FLAG_TELLS_READS, because the host loads the pack early for it. Files that a parameter itself names need no
 * word here: MORTISE_ROLE_FILE and its siblings are enough. The host asks in its own process, reads the parameters as
 * in `create` (host->param_*), and expects the slots to look at files alone: no program is started, nothing is written.
 */
#ifndef MORTISE_EXT_READS_H_
#define MORTISE_EXT_READS_H_

#include "../host.h"

#define MORTISE_EXT_READS "mortise.reads/1"

/* A set of files. The host remembers their names and contents and compares them when the run is resumed. */
typedef struct mortise_file_set {
  uint32_t struct_size;
  uint32_t flags;            /* 0 */
  mortise_text param;        /* the parameter that leads to them; eg: "path" */
  mortise_text name;         /* [a-z][a-z0-9_]*, unique for the parameter, the same in every version; eg: "imports" */
  mortise_text what;         /* for people; eg: "modules that score.py imports from its folder" */
  mortise_text folder;       /* where the files are; the set stays the same when the folder moves */
  uint64_t num_files;        /* may be 0 */
  const mortise_text* files; /* paths below the folder, sorted */
} mortise_file_set;

/* A data column that every run must have. */
typedef struct mortise_needed_column {
  uint32_t struct_size;
  uint32_t flags;     /* 0 */
  mortise_text param; /* the parameter that leads to it */
  mortise_text name;
  mortise_text who;  /* who needs it, for people; eg: "'score' in score.py" */
  mortise_text next; /* what else would help, for people; may be empty */
} mortise_needed_column;

typedef struct mortise_reads_sink {
  uint32_t struct_size;
  uint32_t flags;
  void* context;
  /* Both copy what they are given. Call them from the thread that runs the slot, until it returns. */
  void (*files)(void* context, const mortise_file_set* set) MORTISE_NOEXCEPT;
  void (*column)(void* context, const mortise_needed_column* column) MORTISE_NOEXCEPT;
} mortise_reads_sink;

typedef struct mortise_reads {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* Mandatory. Tells all that an instance with the parameters of `call` will read. A file that is not there is left
   * out. Failing stops the run before its first step. [control] */
  int32_t (*tell)(const mortise_host* host, mortise_call* call, const mortise_reads_sink* sink) MORTISE_NOEXCEPT;
} mortise_reads;

#endif /* MORTISE_EXT_READS_H_ */
