// Has no include guard: tests/lint/headers_alone.cmake must refuse it.
struct NoGuardSample {
  int value;
};
