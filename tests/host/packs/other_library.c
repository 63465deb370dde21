/* A shared library that no note lists. */
__attribute__((visibility("default"))) int other_library(void) { return 42; }
