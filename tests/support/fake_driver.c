/* Stands in for NVIDIA's driver library. What it answers is in environment variables. */
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int fallback) {
  const char* value = getenv(name);
  return value == NULL ? fallback : atoi(value);
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION", 13000);
  return 0;
}
int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_DRIVER_INIT", 0);
}
int cuGetErrorString(int code, const char** text) {
  *text = code == 999 ? "unknown error" : NULL;
  return code == 999 ? 0 : 1;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_DRIVER_COUNT", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  (void)device;
  strncpy(name, "Fake GPU", (size_t)size);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  const int capability = number("FAKE_DRIVER_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 0;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  (void)device;
  *bytes = (size_t)80 << 30;
  return 0;
}
