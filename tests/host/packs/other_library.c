/* A shared library that no note lists. It leaves a mark when any of its code runs. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void leave_mark(void) {
  const char* path = getenv("MORTISE_TEST_MARK");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file != NULL) fclose(file);
}

__attribute__((visibility("default"))) int other_library(void) { return 42; }
