/* For LD_PRELOAD: the wall clock jumps by up to an hour, forwards and backwards, from call to call. The monotonic clock
   is as it is. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump_s(void) {
  static atomic_uint state = 12345;
  return (long)((atomic_fetch_add(&state, 2654435761U) >> 8) % 7200U) - 3600;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  const long result = syscall(SYS_clock_gettime, clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += jump_s();
  return (int)result;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
